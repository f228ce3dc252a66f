"""Trainers of this host use a channel: it may end at any time, and its abuse is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto import limits
from headrace_proto.channel import Channel
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Attach,
    Bye,
    Hello,
    Renew,
    Unknown,
)
from tests.located import workers_at
from tests.patience import PATIENCE_S, eventually

from .honest import answer, dealer, honest_trainer
from .segment_streams import Ledger, chained, of_counts, save_all, train
from .serving import connect, greeted, number_of, serving

ROWS = 2000


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> list[Channel]:
    """The channels of the trainers of this process, the newest last."""
    opened: list[Channel] = []
    reach = Channel.connect

    def reached(*arguments: Any, **options: Any) -> Channel:
        opened.append(reach(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr("headrace.connection.connection.Channel.connect", reached)
    return opened


def cut(channel: Channel) -> None:
    with socket.socket(fileno=os.dup(channel.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def numbers() -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(ROWS)]).batch(10)


def test_one_that_ends_loses_and_repeats_no_segment(channels):
    """It ends after batches were taken, in the middle of saves, and while batches come."""
    ledger = Ledger(of_counts([1 + i % 4 for i in range(24)]))
    with serving(chained(ledger.examples, batch_size=3)) as server:
        with connect(server, prefetch=2) as feed:
            train(feed, ledger, 2)
            batch = next(feed)
            states = ledger.check(batch)
            before = channels[-1]
            cut(before)
            save_all(batch, states)
            train(feed, ledger, 3)
            assert channels[-1] is not before
            cut(channels[-1])
            train(feed, ledger)
        assert server.wait(PATIENCE_S)
        stats = server.stats()["default"]
    ledger.assert_complete()
    assert stats["rows"] == ledger.segments


def test_where_none_can_be_reached_batches_are_shared_all_the_same(monkeypatch):
    def fail(*_: Any, **__: Any) -> Channel:
        raise PermissionError

    monkeypatch.setattr("headrace.connection.connection.Channel.connect", fail)
    with hs.run(numbers()) as server, connect(server) as feed:
        assert feed.local
        assert sum(batch.rows for batch in feed) == ROWS


# Strangers at the door


@pytest.fixture
def served() -> Iterator[tuple[hs.Server, Path]]:
    with serving(numbers()) as server:
        with greeted(server) as welcome:
            path = Path(welcome.channel)
        yield server, path


def wire(*frames: bytes) -> bytes:
    lengths = [len(frame) for frame in frames]
    return struct.pack(f"<I{len(frames)}Q", len(frames), *lengths) + b"".join(frames)


@contextlib.contextmanager
def stranger(path: Path, said: bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(PATIENCE_S)
        end.connect(str(path))
        end.sendall(said)
        yield end


def hung_up(end: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while end.recv(65536):
            pass
    return True


NO_MESSAGES = [
    struct.pack("<I", 0),
    struct.pack("<I", 2**31),
    struct.pack("<IQ", 1, 2**62),
    struct.pack("<IQ", 1, limits.MAX_HEADER_BYTES + limits.MAX_UPLOAD_BYTES + 1),
    struct.pack(f"<I{limits.MAX_FRAMES + 1}Q", limits.MAX_FRAMES + 1, *[0] * 258),
]


@pytest.mark.parametrize("said", NO_MESSAGES, ids=lambda said: said[:12].hex())
def test_what_is_no_message_ends_its_connection_and_no_other(said, served):
    server, path = served
    with honest_trainer(server, ROWS), stranger(path, said) as end:
        assert hung_up(end)


def test_who_can_not_tell_what_is_in_the_file_gets_no_session(served):
    server, path = served
    with honest_trainer(server, ROWS):
        number = number_of(server)
        for attach in (Attach(number, b"guess"), Attach(number, b""), Attach(999, b"guess")):
            with stranger(path, wire(FROM_TRAINER.encode(attach))) as end:
                assert hung_up(end)


def test_a_session_is_not_spoken_for_by_another_channel(served):
    """Renew, as if by the honest trainer, is answered Unknown; its session stands."""
    server, path = served
    with honest_trainer(server, ROWS):
        renew = Renew(number_of(server), 0)
        with stranger(path, wire(FROM_TRAINER.encode(renew))) as end:
            assert type(FROM_SERVER.decode(end.recv(65536)[12:])).__name__ == "Unknown"


def test_the_proof_without_the_lock_is_not_enough(served):
    """A trainer without a lock looks like a dead one."""
    server, path = served
    with greeted(server) as welcome:
        attach = Attach(welcome.session, Path(welcome.session_file).read_bytes())
        renew = Renew(welcome.session, 0)
        said = wire(FROM_TRAINER.encode(attach)) + wire(FROM_TRAINER.encode(renew))
        with stranger(path, said) as end, contextlib.suppress(ConnectionResetError):
            assert end.recv(65536) == b"", "it was answered"


def test_a_bye_that_crosses_the_answer_to_a_greeting_counts_after_the_channel_too():
    """Nothing else ends the session while the trainer's process has its batches mapped."""
    with (
        serving(numbers(), lease_ttl_s=3600) as server,
        dealer(workers_at(server.address)[0]) as peer,
    ):
        peer.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", "", b"n")))
        welcome = answer(peer)
        with open(welcome.session_file, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            said = wire(FROM_TRAINER.encode(Attach(welcome.session, file.read())))
            with stranger(Path(welcome.channel), said):
                eventually(lambda: server.stats()["default"]["trainers"][0]["local"])
                peer.send(FROM_TRAINER.encode(Bye(0)))
                eventually(lambda: not server.stats()["default"]["trainers"])


@pytest.mark.parametrize("said", [[], [Renew(1, 9)]], ids=["nothing", "more than came"])
def test_a_trainer_that_dies_after_its_greeting_is_missed_long_before_its_lease_ends(said):
    """Only a probe of its connection shows that it is gone; a message was lost, or none came."""
    with serving(numbers(), lease_ttl_s=3600) as server:
        with dealer(workers_at(server.address)[0]) as peer:
            peer.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", "", b"n", gets=(1, 0, 0))))
            session = answer(peer).session
            for renew in said:
                peer.send(FROM_TRAINER.encode(dataclasses.replace(renew, session=session)))
                while not isinstance(FROM_SERVER.decode(peer.recv_multipart()[0]), Unknown):
                    pass
        with connect(server, timeout=PATIENCE_S) as feed:
            got = sorted(int(i) for batch in feed for i in batch["i"])
    assert got == list(range(ROWS))
