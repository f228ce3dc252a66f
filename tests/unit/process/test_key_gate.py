"""The gate admits trainers with a key, and counts refusals of others by reason.  Real sockets."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from headrace.credentials import load_keys
from headrace_server.cli.keygen import make_pair
from headrace_server.process.connections import Connections
from headrace_server.process.key_gate import Gate
from headrace_server.process.keyring import KeyRing
from headrace_server.process.sockets import public_router
from tests.patience import PATIENCE_S


def greeting(mechanism: bytes) -> bytes:
    """How a connection of ZeroMQ begins."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


class House:
    """A public socket behind its gate, in this thread, and the trainers that knock."""

    def __init__(self, keys: Path | None) -> None:
        self.context: Any = zmq.Context()
        self.outside: Any = zmq.Context()
        self.public = public_router(self.context)
        self.connections = Connections(self.context, self.public, 100)
        ring = None if keys is None else KeyRing(keys)
        self.gate = Gate(self.context, self.public, ring, self.connections)
        self.port = self.public.bind_to_random_port("tcp://127.0.0.1")
        self._trainers: list[Any] = []

    def knock(self, keys: Path | None = None) -> Any:
        """Connect a trainer that sends "hi"."""
        trainer = self.outside.socket(zmq.DEALER)
        trainer.linger = 0
        if keys is not None:
            load_keys(keys).lock(trainer)
        trainer.connect(f"tcp://127.0.0.1:{self.port}")
        trainer.send(b"hi")
        self._trainers.append(trainer)
        return trainer

    def knock_raw(self, opening: bytes) -> socket.socket:
        """Open a connection that sends these bytes and nothing more."""
        raw = socket.create_connection(("127.0.0.1", self.port))
        raw.sendall(opening)
        return raw

    def heard(self, until: Callable[[], bool] = lambda: False) -> tuple[str, list[bytes]] | None:
        """Return the next message and its key, or None once the awaited condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.gate.answer(time.monotonic())
            self.connections.hear(time.monotonic())
            self.gate.tick(time.monotonic())
            if self.public.poll(10):
                key, _, frames = self.gate.receive()
                return key, frames
            if until():
                return None
        raise AssertionError(f"neither heard nor refused: {self.gate.refusals.counts}")

    def refuses(self, reason: str) -> bool:
        """Return whether the next event is a refusal for this reason, and no message."""
        return self.heard(lambda: self.gate.refusals.counts[reason] > 0) is None

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()
        self.outside.term()
        self.gate.close()
        self.connections.close()
        self.public.close()
        self.context.term()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The keys of a server that knows alice."""
    make_pair(tmp_path / "keys", None)
    make_pair(tmp_path / "keys", "alice")
    return tmp_path / "keys"


@pytest.fixture
def stranger(tmp_path: Path, keys: Path) -> Path:
    """The keys of bob, whom the server does not know."""
    make_pair(tmp_path / "bob", "bob")
    (tmp_path / "bob" / "server.public").write_text((keys / "server.public").read_text())
    return tmp_path / "bob"


@pytest.fixture
def locked(keys: Path) -> Iterator[House]:
    house = House(keys)
    yield house
    house.close()


def test_a_trainer_with_a_known_key_is_admitted_under_its_name(locked: House, keys: Path):
    locked.knock(keys)
    heard = locked.heard()
    assert heard is not None
    assert heard == (load_keys(keys).public, [b"hi"])
    assert locked.gate.name_of(heard[0]) == "alice"
    assert locked.gate.keys == {"keys": True, "known": ["alice"]}
    assert locked.gate.refusals.counts == {}


def test_an_unknown_key_is_refused_and_logged_with_address_and_key(
    locked: House, stranger: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    locked.knock(stranger)
    assert locked.refuses("unknown_key")
    (line,) = caplog.messages
    assert "127.0.0.1" in line and load_keys(stranger).public in line


def test_a_key_that_came_a_moment_ago_is_known_at_once(locked: House, keys: Path, stranger: Path):
    now = time.monotonic()
    locked.gate.tick(now)  # looked a moment ago, and will not look again for a second
    (keys / "trainers" / "bob.public").write_text((stranger / "bob.public").read_text())
    while time.monotonic() < now + 0.11:
        locked.public.poll(10)
    locked.knock(stranger)
    heard = locked.heard()
    assert heard is not None and locked.gate.name_of(heard[0]) == "bob"


def test_a_trainer_with_the_key_of_another_server_is_refused(
    locked: House, keys: Path, tmp_path: Path
):
    make_pair(tmp_path / "other", None)
    (keys / "server.public").write_text((tmp_path / "other" / "server.public").read_text())
    locked.knock(keys)
    assert locked.refuses("other_server_key")


def test_invalid_handshakes_are_counted_and_not_logged(
    locked: House, caplog: pytest.LogCaptureFixture
):
    locked.knock_raw(greeting(b"CURVE")[:5]).close()
    assert locked.refuses("handshake")
    assert not caplog.messages


def test_a_storm_of_broken_handshakes_is_read_in_turns_and_holds_up_nobody(
    locked: House, keys: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace_server.process.connections._BURST", 10)
    for _ in range(200):
        locked.knock_raw(greeting(b"CURVE")[:5]).close()
    locked.connections.hear(time.monotonic())
    locked.gate.tick(time.monotonic())
    assert locked.gate.refusals.counts.total() <= 10
    locked.knock(keys)
    assert locked.heard() == (load_keys(keys).public, [b"hi"])
    assert locked.heard(lambda: locked.gate.refusals.counts["handshake"] >= 200) is None


def test_a_key_that_comes_right_after_a_refusal_is_let_in_at_the_next_look(
    locked: House, keys: Path, stranger: Path
):
    locked.gate.tick(looked := time.monotonic())
    (keys / "trainers" / "bob.public").write_text((stranger / "bob.public").read_text())
    locked.knock(stranger)
    assert locked.gate.questions is not None
    assert locked.gate.questions.poll(int(1000 * PATIENCE_S))
    assert not locked.gate.answer(looked), "no look is due when it knocks"
    heard = locked.heard()
    assert heard is not None and locked.gate.name_of(heard[0]) == "bob"
