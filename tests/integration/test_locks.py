"""A server with keys: trainers with a key train, all others get the reason, and no secret shows.

Real servers, trainers and hostile peers.  One server serves the tests that leave it as it was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import zmq
from zmq.utils import z85

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.credentials import load_keys
from headrace_proto.keys import parse_secret
from headrace_proto.messages import FROM_TRAINER, Bye, Hello, Refused, Step, Welcome
from headrace_server.cli import main
from headrace_server.cli.asking import ServerAt
from headrace_server.cli.keygen import make_pair
from tests.located import workers_at
from tests.patience import PATIENCE_S, eventually

from .honest import answer, dealer
from .processes import serve, trainer
from .serving import connect, serving

ROWS = 400


@dataclass
class Locked:
    """A running server and keys of all kinds."""

    server: Any
    root: Path

    @property
    def address(self) -> str:
        return str(self.server.address)

    @property
    def worker(self) -> str:
        """The address of its worker."""
        return workers_at(self.address, load_keys(self.keys("alice")))[0]

    @property
    def refused(self) -> dict[str, int]:
        return dict(self.server.access()["refused"])

    def keys(self, name: str) -> str:
        return str(self.root / name)


def make_keys(root: Path) -> None:
    """Make keys of a server; of alice, whom it knows; of bob, who knows it; of carol, who knows
    another.
    """
    make_pair(root / "server", None)
    make_pair(root / "server", "alice")
    make_pair(root / "other", None)
    make_pair(root / "bob", "bob")
    shutil.copy(root / "server" / "server.public", root / "bob")
    (root / "carol").mkdir()
    shutil.copy(root / "server" / "alice.secret", root / "carol" / "carol.secret")
    shutil.copy(root / "other" / "server.public", root / "carol")
    (root / "alice").mkdir()
    for name in ("alice.secret", "server.public"):
        shutil.copy(root / "server" / name, root / "alice")


def numbers(rows: int = ROWS) -> Any:
    return hs.from_examples([{"i": k} for k in range(rows)]).batch(10)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    """Start a server whose feed does not end."""
    root = tmp_path_factory.mktemp("locked")
    make_keys(root)
    endless = hs.from_examples([{"i": k} for k in range(ROWS)]).repeat().batch(10)
    with serving(endless, keys=root / "server") as server:
        yield Locked(server, root)


def hello(nonce: bytes = b"n") -> bytes:
    return FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", "", nonce))


def write_feeds(directory: Path) -> None:
    (directory / "feeds.py").write_text(
        "import headrace_server as hs\n"
        "def numbers():\n"
        "    return hs.from_examples([{'i': k} for k in range(100)]).batch(10)\n"
    )


def some_rows(address: str, keys: str | None, batches: int = 20) -> int:
    """Return the number of rows in some batches of a feed."""
    rows = 0
    with headrace.connect(address, keys=keys, timeout=PATIENCE_S) as feed:
        for _, batch in zip(range(batches), feed, strict=False):
            rows += len(batch["i"])
    return rows


# Who is let in


def test_a_trainer_with_keys_trains_and_is_known_by_name(locked, way):
    with headrace.connect(locked.address, keys=locked.keys("alice"), timeout=PATIENCE_S) as feed:
        assert len(next(feed)["i"]) == 10
        assert feed.local == (way == "shared memory")
        access = locked.server.access()
        assert access["keys"] is True and access["known"] == ["alice"]
        assert access["present"] == {"alice": 1}


@pytest.mark.parametrize(
    ("who", "told"),
    [
        ("bob", r"does not know the public key .* put bob\.public into trainers/"),
        (None, r"asks for keys: give those of a trainer by keys="),
        ("carol", r"server\.public"),
    ],
    ids=["a key that is not known", "no keys", "another server's key"],
)
def test_whoever_is_not_let_in_is_told_why_long_before_the_deadline(locked, who, told):
    before = sum(locked.refused.values())
    started = time.monotonic()
    with pytest.raises(headrace.NotAllowed, match=told):
        headrace.connect(
            locked.address, keys=None if who is None else locked.keys(who), timeout=100
        )
    assert time.monotonic() - started < PATIENCE_S
    eventually(lambda: sum(locked.refused.values()) > before)


def test_a_command_needs_the_keys_of_a_trainer(locked, capsys, monkeypatch):
    """The server has no HTTP."""
    at = ["--address", locked.address]
    for who, told in (
        (None, "asks for keys: give those of a trainer by keys= (--keys) or HEADRACE_KEYS"),
        ("bob", "put bob.public into trainers/ of the server's keys"),
        ("carol", "its key is not server.public of keys="),
    ):
        started = time.monotonic()
        keys = [] if who is None else ["--keys", locked.keys(who)]
        assert main(["end", "default", *at, *keys]) == 1
        assert told in capsys.readouterr().err
        assert time.monotonic() - started < PATIENCE_S
    monkeypatch.setenv("HEADRACE_KEYS", locked.keys("alice"))
    assert main(["status", *at]) == 0
    said = capsys.readouterr().out
    assert said.startswith("serving  up ") and "default  open  " in said
    assert main(["end", "absent", *at]) == 2
    assert f"{locked.address}: feed='absent' is none of default" in capsys.readouterr().err


def test_a_refusal_before_the_first_message_is_told_as_well(locked, monkeypatch):
    """1. The handshake fails for good before the trainer asks. 2. Its question has no way to go."""

    connect = zmq.Socket.connect

    def given_up(opened: Any, address: str) -> Any:
        connect(opened, address)
        deadline = time.monotonic() + 5  # a busy server may hang up first each time
        while address == locked.address and opened.poll(0, zmq.POLLOUT):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)

    monkeypatch.setattr(zmq.Socket, "connect", given_up)
    with pytest.raises(headrace.NotAllowed, match="asks for keys: give those of a trainer"):
        headrace.connect(locked.address, timeout=PATIENCE_S)
    with pytest.raises(headrace.NotAllowed, match="asks for keys: give those of a trainer"):
        ServerAt(locked.address).ask("status", PATIENCE_S)


@pytest.mark.parametrize("keys", [None, "alice"])
@pytest.mark.parametrize("says", [b"", bytes(1000), b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_program_that_breaks_every_connection_off_is_told_as_such(
    locked, keys, says, monkeypatch
):
    """1. It ends every connection, with or without a word. 2. A shorter timeout names it too."""
    monkeypatch.setattr("headrace_proto.handshakes._PATIENCE_S", 1.5)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as end:
                    end.sendall(says)

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    known = None if keys is None else locked.keys(keys)
    try:
        with pytest.raises(headrace.NotAllowed, match=f"{address} breaks off every connection"):
            headrace.connect(address, keys=known, timeout=PATIENCE_S)
        with pytest.raises(headrace.ConnectionLost, match=f"{address} breaks off every connection"):
            headrace.connect(address, keys=known, timeout=1)
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # ends the accept, too
        listener.close()


def test_a_trainer_with_keys_is_told_by_a_server_without_and_others_train(tmp_path):
    make_keys(tmp_path)
    with serving(numbers()) as server:
        with pytest.raises(headrace.NotAllowed, match=r"has no keys, .*keys="):
            headrace.connect(server.address, keys=tmp_path / "alice", timeout=100)
        assert some_rows(server.address, None, ROWS) == ROWS
        assert server.access()["keys"] is False


def test_keys_that_come_and_go_count_at_once_and_what_a_trainer_held_goes_to_others(tmp_path):
    """
    1. bob is refused   2. his key is put there: he trains   3. it is taken away: he is sent away
    4. alice gets all rows that he did not commit
    """
    make_keys(tmp_path)
    known = tmp_path / "server" / "trainers"
    with serving(numbers(), keys=tmp_path / "server") as server:
        with pytest.raises(headrace.NotAllowed):
            connect(server, keys=tmp_path / "bob")
        shutil.copy(tmp_path / "bob" / "bob.public", known)
        bob = connect(server, keys=tmp_path / "bob")
        assert next(bob)["i"].tolist() == list(range(10))
        (known / "bob.public").unlink()
        eventually(lambda: server.access()["refused"].get("revoked") == 1)
        with pytest.raises(headrace.NotAllowed, match=r"no longer, in trainers/"):
            list(bob)  # some batches were sent before
        bob.close()
        assert server.access()["present"] == {}
        with connect(server, keys=tmp_path / "alice") as feed:
            assert sorted(i for batch in feed for i in batch["i"].tolist()) == list(range(ROWS))


# Hostile peers


def test_frames_without_end_and_frames_too_large_end_at_the_gate_without_a_key(locked):
    process = psutil.Process(locked.server.pids["worker-0-0"])
    base = process.memory_info().rss
    port = urlsplit(locked.worker).port
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
    hostile = [
        greeting + b"\x04\xc8\x05HELLO" + os.urandom(194),  # a box that no key has locked
        greeting + b"\x04\x19\x05READY" + bytes(19),
        greeting + b"\x06" + struct.pack(">Q", 2**62),  # a command of that many bytes
        greeting + b"\x03" + struct.pack(">Q", 2**32),  # a frame, before any handshake
        greeting + b"\x01\xff" * 100_000,  # parts without end
    ]
    stop = threading.Event()

    def attack(opening: bytes) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                raw = socket.create_connection(("127.0.0.1", port), 2)
                with raw:
                    for _ in range(20):
                        raw.sendall(opening)

    attackers = [threading.Thread(target=attack, args=(opening,)) for opening in hostile]
    for attacker in attackers:
        attacker.start()
    try:
        assert some_rows(locked.address, locked.keys("alice"), 100) == 1000
    finally:
        stop.set()
        for attacker in attackers:
            attacker.join()
    assert process.memory_info().rss < base + 30 * 2**20
    eventually(lambda: locked.refused.get("handshake", 0) > 0)  # at its next tick


# Limits


def test_more_trainers_than_there_may_be_and_more_messages_are_refused_by_name(tmp_path):
    with serving(numbers(), max_trainers=2, max_messages_per_s=200, max_credits=3) as server:
        with connect(server, prefetch=20) as feed:
            eventually(lambda: server.stats()["default"]["standing"]["leased"] == 3)
            with dealer(workers_at(server.address)[0]) as second:
                second.send(hello())
                welcome = answer(second)
                with pytest.raises(headrace.LimitExceeded, match="max_trainers=2"):
                    connect(server)
                second.send(FROM_TRAINER.encode(Bye(welcome.session)))
                eventually(lambda: server.access()["present"] == {"": 1})
            with dealer(workers_at(server.address)[0]) as flood:
                for _ in range(2000):
                    flood.send(hello())
                assert last_words(flood)
            with dealer(workers_at(server.address)[0]) as flood:
                session = welcomed(flood)
                for _ in range(2000):
                    flood.send(FROM_TRAINER.encode(Step(session)))
                assert last_words(flood)
            rows = sum(len(batch["i"]) for batch in feed)
        assert rows == ROWS
        refused = server.access()["refused"]
        assert refused["trainers"] >= 1 and refused["messages"] == 2 and refused["muted"] > 1000


def welcomed(peer: Any) -> int:
    """Return the session of a peer; the server may still hold the place of an earlier one."""
    while True:
        peer.send(hello(b"other"))
        told = answer(peer)
        if isinstance(told, Welcome):
            return int(told.session)
        peer.poll(50)


def last_words(peer: Any) -> bool:
    """Return whether the server's last message refuses further ones as too many."""
    while not isinstance(told := answer(peer), Refused) or "max_messages" not in told.text:
        pass
    return told.code == "limit" and "max_messages_per_s=200" in told.text and not peer.poll(300)


# Texts and pages


def test_no_secret_is_in_anything_that_a_server_or_a_trainer_says_or_serves(tmp_path, monkeypatch):
    """Logs, errors, counters, command lines, environments, shared memory, the state directory."""
    make_keys(tmp_path)
    secrets = {
        parse_secret(path.read_text(), str(path)).text for path in tmp_path.rglob("*.secret")
    }
    assert len(secrets) == 4
    write_feeds(tmp_path)
    told: list[str] = []
    options = ("--keys", "server", "--state-dir", "state", "--bind", "tcp://0.0.0.0:*")
    options += ("--slab-bytes", "8000000")
    monkeypatch.setenv("HEADRACE_KEYS", str(tmp_path / "alice"))
    server, address = serve(tmp_path, "feeds.py:numbers", *options, warm=False)
    with server:
        with trainer(address, "--hold", "2") as process:
            process.wait_for("holding")
            told += [path.read_bytes().decode("latin-1") for path in _served(server.pid)]
            process.kill()
            told.append(process.output())
        with dealer(address, str(tmp_path / "alice")) as peer:
            peer.send(b"garbage")
            told.append(repr(answer(peer)))
        with pytest.raises(headrace.NotAllowed) as refused:
            headrace.connect(address, keys=tmp_path / "bob", timeout=PATIENCE_S)
        told.append(repr(refused.value))
        told += [repr(entry.frame.f_locals) for entry in refused.traceback[1:]]
        server.signal(15)
        assert server.finish() == 0
        told.append(server.output())
    told += [
        path.read_bytes().decode("latin-1")
        for path in (tmp_path / "state").rglob("*")
        if path.is_file()
    ]
    with hs.run(numbers(), keys=tmp_path / "server") as running:
        told += [repr(running.access()), repr(running.stats()), *shown(running)]
        with headrace.connect(running.address, keys=tmp_path / "alice", timeout=PATIENCE_S) as feed:
            told += shown(feed)
    text = "\n".join(told)
    for expected in ("refused a trainer", "NotAllowed", "is not in trainers/", "alice"):
        assert expected in text  # the searched text really contains these
    for secret in secrets:
        assert secret not in text
        assert z85.decode(secret.encode()).decode("latin-1") not in text


def shown(top: object, depth: int = 3) -> Iterator[str]:
    """Yield what a debugger or a log would show of an object, and of those that it refers to."""
    yield repr(top)
    if depth and type(top).__module__.startswith("headrace"):
        for one in getattr(top, "__dict__", {}).values():
            yield from shown(one, depth - 1)


def _served(pid: int) -> Iterator[Path]:
    """Return texts that a server's processes show in /proc, and their shared memory."""
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        yield from (Path(f"/proc/{process.pid}/{name}") for name in ("cmdline", "environ"))
    for directory in Path("/dev/shm").glob(f"headrace-{os.getuid()}-{pid}-*"):
        yield from (path for path in directory.iterdir() if path.is_file())
