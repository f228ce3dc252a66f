"""The channels of a worker: messages written whole arrive, and no worker waits."""

from __future__ import annotations

import errno
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_proto.channel import Channel
from headrace_server.net.channel_server import SPARE, ChannelServer
from tests.patience import PATIENCE_S
from tests.shortage import no_descriptors

LIMIT_S = PATIENCE_S

Said = tuple[bytes, list[bytes]]


class Place:
    """A server of channels, and all that connect to it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "workers"
        self._named: dict[bytes, bytes] = {}  # what each process calls itself, by connection
        self.server = ChannelServer(self.path, 100, self._named.__contains__, sys.maxsize)
        self.heard: list[Said] = []
        self._ends: list[Any] = []

    def worker(self, name: bytes = b"0-0") -> Channel:
        """A worker that has said what it is called."""
        channel = Channel.connect(self.path, [name])
        self._ends.append(channel)
        self.hear_out()
        return channel

    def send(self, name: bytes, frames: Any) -> bool:
        return self.server.send(self._connection_of(name), frames)

    def _connection_of(self, name: bytes) -> bytes:
        """Return the last connection of a process that called itself so."""
        return next((at for at, of in reversed(self._named.items()) if of == name), b"")

    def take(self) -> None:
        """Take the messages that have come; the first of each connection is a name."""
        for connection, frames in heard_by(self.server):
            if connection in self._named:
                self.heard.append((self._named[connection], frames))
            else:
                (self._named[connection],) = frames

    def stranger(self, written: bytes) -> socket.socket:
        """A process that writes arbitrary bytes."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ends.append(end)
        end.connect(str(self.path))
        end.sendall(written)
        return end

    def hear_out(self) -> list[Said]:
        """Exchange until nothing more can be read or written; return the messages that came."""
        before = len(self.heard)
        deadline = time.monotonic() + LIMIT_S
        while self.server.unread or ready(self.server, 0):
            assert time.monotonic() < deadline, "it is always ready"
            self.take()
        return self.heard[before:]

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self.server.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def heard_by(server: ChannelServer) -> list[Said]:
    """Return what has come, by connection."""
    heard: list[Said] = []
    server.receive(lambda name, frames: heard.append((name, frames)))
    return heard


def connected_to(server: ChannelServer) -> int:
    """Return how many have a channel: its other files are the listener and its poll."""
    return len(server.filenos()) - 2


def ready(source: Any, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def wire(*frames: bytes) -> bytes:
    """A message as it is written."""
    lengths = [len(frame) for frame in frames]
    return struct.pack(f"<I{len(frames)}Q", len(frames), *lengths) + b"".join(frames)


def read_on(place: Place, channel: Channel, count: int) -> list[list[bytes]]:
    """A trainer reads, and the worker writes on, until so many messages have come."""
    got: list[list[bytes]] = []
    deadline = time.monotonic() + LIMIT_S
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count} messages came"
        place.hear_out()
        got += channel.take()
    return got


# Messages


def test_a_message_that_comes_byte_by_byte_is_read_once_with_its_last_byte(place: Place):
    written = wire(b"header", b"", b"payload")
    end = place.stranger(wire(b"7-1"))
    for at in range(len(written)):
        assert place.hear_out() == []
        end.sendall(written[at : at + 1])
    assert place.hear_out() == [(b"7-1", [b"header", b"", b"payload"])]


def test_what_came_whole_before_garbage_is_heard_and_nothing_after_it(place: Place):
    place.stranger(wire(b"1-0") + wire(b"whole", b"before") + bytes(4) + wire(b"after"))
    assert place.hear_out() == [(b"1-0", [b"whole", b"before"])]
    assert place.send(b"1-0", [b"x"]) is False


class Trickle:
    """A socket that takes a few bytes at each call, and now and then none, as one that is full."""

    def __init__(self) -> None:
        self.written = bytearray()
        self._chance = random.Random(5)

    def send(self, data: memoryview, *_: Any) -> int:
        return self.sendmsg([data])

    def sendmsg(self, pieces: list[memoryview], *_: Any) -> int:
        if self._chance.random() < 0.3:
            raise OSError(self._chance.choice((errno.EAGAIN, errno.ENOBUFS)), "not now")
        data = b"".join(pieces)[: self._chance.randint(1, 9)]
        self.written += data
        return len(data)


def test_the_rest_of_a_partial_write_is_written_next_for_any_cut():
    end = Trickle()
    channel = Channel(end)  # type: ignore[arg-type]
    chance = random.Random(6)
    expected = b""
    for _ in range(200):
        frames = [chance.randbytes(chance.randint(0, 12)) for _ in range(chance.randint(1, 6))]
        expected += wire(*frames)
        channel.post(frames)
        channel.flush()
    assert len(end.written) < len(expected)
    while channel.flush():
        pass
    assert bytes(end.written) == expected


# A worker that does not read


def test_a_worker_waits_for_no_trainer_and_all_arrives_when_it_reads_on(place: Place):
    """Some hundred kB of 64 MB fit the socket: a worker that waited would never return."""
    silent = place.worker(b"0-0")
    other = place.worker(b"1-0")
    told = [[b"%d" % i, bytes([i]) * (1 << 20)] for i in range(64)]
    for frames in told:
        assert place.send(b"0-0", frames)
    assert place.hear_out() == []  # and where nobody reads, nothing is ready: the poll can rest
    assert place.send(b"1-0", [b"you"])
    assert other.take() == [[b"you"]]
    silent.post([b"still heard"])
    assert place.hear_out() == [(b"0-0", [b"still heard"])]
    assert read_on(place, silent, 64) == told
    assert not ready(place.server, 0)  # it is not woken any more to write
    assert place.send(b"0-0", [b"as before"])
    assert silent.take() == [[b"as before"]]


def test_a_trainer_that_reads_nothing_is_cut_off_before_much_is_kept_for_it(tmp_path: Path):
    server = ChannelServer(tmp_path / "trainers", 4 + SPARE, lambda name: True)
    assert not server.anybody
    trainer = Channel.connect(server.path, [b"hello"])
    assert heard_by(server) == []  # it was let in
    ((name, said),) = heard_by(server)
    assert said == [b"hello"] and server.anybody
    told = 0
    while server.send(name, [bytes(1 << 16)]):
        told += 1
        assert told < 1000
    assert told >= 128 and not server.anybody and not server.send(name, [b"more"])
    assert len(trainer.take()) >= 1  # what had left before can still be read
    trainer.close()
    server.close()


def test_a_trainer_that_sends_much_at_once_is_read_to_its_end_and_others_have_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace_server.net.channel_server.TURN_S", 0.0)
    server = ChannelServer(tmp_path / "trainers", 4 + SPARE, lambda name: True)
    much = Channel.connect(server.path, [b"0"])
    little = Channel.connect(server.path, [b"0"])
    for number in range(1, 100):
        much.post([b"%d" % number])
    much.close()
    heard: dict[bytes, list[int]] = {}
    turns = 0
    while len(heard.get(b"\0channel-1", ())) < 100:
        assert server.unread or ready(server, PATIENCE_S)
        for name, (said,) in heard_by(server):
            heard.setdefault(name, []).append(int(said))
        turns += 1
        if turns == 50:
            little.post([b"1"])
    assert turns >= 100, "it was heard for more than a moment at a time"
    assert heard == {b"\0channel-1": list(range(100)), b"\0channel-2": [0, 1]}
    while server.unread or ready(server, 0):
        heard_by(server)
    assert server.send(b"\0channel-2", [b"here"]) and not server.send(b"\0channel-1", [b"gone"])
    little.close()
    server.close()


# Too many connections, too few descriptors


def test_strangers_make_room_for_others_and_identified_connections_stay(tmp_path: Path):
    place = Place(tmp_path)
    try:
        worker = place.worker(b"0-0")
        strangers = [place.stranger(b"") for _ in range(150)]
        place.hear_out()
        assert connected_to(place.server) == 100
        assert strangers[0].recv(1) == b"" and worker.take() == [] and not worker.ended
        assert place.send(b"0-0", [b"still here"])
        assert place.worker(b"1-0") and place.send(b"1-0", [b"x"])
    finally:
        place.close()


def test_an_exchange_without_descriptors_waits_and_accepts_when_there_are_some(tmp_path: Path):
    place = Place(tmp_path)
    try:
        worker = place.worker(b"0-0")
        late = place.stranger(b"")
        with no_descriptors():
            place.hear_out()  # and it is not always ready
            assert place.send(b"0-0", [b"meanwhile"])
        place.server.tick()
        place.hear_out()
        assert connected_to(place.server) == 2 and not worker.ended
        late.close()
    finally:
        place.close()
