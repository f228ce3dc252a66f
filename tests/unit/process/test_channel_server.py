"""The channels of a worker: messages written whole arrive, and no worker waits."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_proto.channel import Channel
from headrace_server.process.channel_server import SPARE, ChannelServer
from tests.patience import PATIENCE_S
from tests.shortage import no_descriptors

LIMIT_S = PATIENCE_S
BIG = 50_000_000

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

    def tell(self, name: bytes, frames: Any) -> bool:
        return self.server.tell(self._connection_of(name), frames)

    def unsent_memory(self, name: bytes) -> int:
        return self.server.unsent_memory(self._connection_of(name))

    def _connection_of(self, name: bytes) -> bytes:
        """Return the last connection of a process that called itself so."""
        return next((at for at, of in reversed(self._named.items()) if of == name), b"")

    def take(self) -> None:
        """Take the messages that have come; the first of each connection is a name."""
        for connection, frames in self.server.hear():
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
        while self.server.unheard or ready(self.server, 0):
            assert time.monotonic() < deadline, "it is always ready"
            self.take()
        return self.heard[before:]

    def hear(self, count: int) -> list[Said]:
        """Exchange until this many messages have come in all."""
        deadline = time.monotonic() + LIMIT_S
        while len(self.heard) < count:
            left = deadline - time.monotonic()
            assert left > 0, f"{len(self.heard)} of {count} messages came"
            if self.server.unheard or ready(self.server, left):
                self.take()
        return self.heard

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self.server.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


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
        got += channel.receive()
    return got


@contextlib.contextmanager
def process(place: Place, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own: ``channel`` is its end, as 1-0; ``wait`` never returns."""
    preamble = f"""
        import signal
        from pathlib import Path
        from headrace_proto.channel import Channel
        wait = signal.pause
        channel = Channel.connect(Path({str(place.path)!r}), [b"1-0"])
    """
    source = textwrap.dedent(preamble) + textwrap.dedent(program)
    child = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


# Messages


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", b"", b""],
        [b"header", b"", b"payload", b""],
        [b"x" * 4096] * 257,
        [b""] * 257,
        [bytes(1 << 18)],
        [bytes((1 << 18) - 12), b"y"],
    ],
    ids=["empty", "empties", "mixed", "most", "most-empty", "one-read", "over-a-read"],
)
def test_a_message_arrives_as_it_was_sent_both_ways(place: Place, frames: list[bytes]):
    worker = place.worker()
    sending = threading.Thread(target=worker.send, args=(frames,))
    sending.start()
    assert place.hear(1) == [(b"0-0", frames)]
    sending.join(LIMIT_S)
    assert place.tell(b"0-0", frames)
    assert read_on(place, worker, 1) == [frames]
    assert not ready(worker, 0)  # nothing was left over


def test_messages_of_any_size_from_several_workers_come_whole_and_in_the_order_of_each(
    place: Place,
):
    said: dict[bytes, list[list[bytes]]] = {}
    sending = []
    for k in range(3):
        chance = random.Random(k)
        name = b"%d-0" % k
        messages = [
            [chance.randbytes(chance.choice((0, 1, 50, 3000, 70_000))) for _ in range(1 + i % 5)]
            for i in range(300)
        ]
        messages.insert(150, [b"big", chance.randbytes(1000) * (BIG // 1000)])
        said[name] = messages
        sending.append(threading.Thread(target=send_all, args=(place.worker(name), messages)))
    for thread in sending:
        thread.start()
    place.hear(3 * 301)
    for thread in sending:
        thread.join(LIMIT_S)
    heard = defaultdict(list)
    for name, frames in place.heard:
        heard[name].append(frames)
    assert heard == said
    firsts = [place.heard.index((name, frames)) for name, (frames, *_) in said.items()]
    lasts = [max(i for i, one in enumerate(place.heard) if one[0] == name) for name in said]
    assert max(firsts) < min(lasts)  # they were heard side by side


def send_all(channel: Channel, messages: list[list[bytes]]) -> None:
    for frames in messages:
        channel.send(frames)


def test_a_message_that_comes_byte_by_byte_is_read_once_with_its_last_byte(place: Place):
    written = wire(b"header", b"", b"payload")
    end = place.stranger(wire(b"7-1"))
    for at in range(len(written)):
        assert place.hear_out() == []
        end.sendall(written[at : at + 1])
    assert place.hear_out() == [(b"7-1", [b"header", b"", b"payload"])]


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
        assert place.tell(b"0-0", frames)
    assert place.hear_out() == []  # and where nobody reads, nothing is ready: the poll can rest
    assert place.tell(b"1-0", [b"you"])
    assert other.receive() == [[b"you"]]
    silent.send([b"still heard"])
    assert place.hear_out() == [(b"0-0", [b"still heard"])]
    assert read_on(place, silent, 64) == told
    assert not ready(place.server, 0)  # it is not woken any more to write
    assert place.tell(b"0-0", [b"as before"])
    assert silent.receive() == [[b"as before"]]


# Death


def test_whole_messages_of_a_worker_killed_within_a_message_are_read_and_others_go_on(
    place: Place,
):
    other = place.worker(b"0-0")
    with process(
        place,
        f"""
        channel.send([b"first"])
        channel.send([b"second", b""])
        channel.send([b"third", bytes({BIG})])
        """,
    ) as child:
        place.hear(2)
        child.send_signal(signal.SIGKILL)  # it waits in its third, which nobody reads
        child.wait(LIMIT_S)
        place.hear_out()
    assert place.heard == [(b"1-0", [b"first"]), (b"1-0", [b"second", b""])]
    other.send([b"on"])
    assert place.hear_out() == [(b"0-0", [b"on"])]
    assert place.tell(b"0-0", [b"on"])
    assert other.receive() == [[b"on"]]
    assert place.tell(b"1-0", [b"late"]) is False


def test_a_worker_that_dies_while_much_waits_for_it_leaves_nothing_behind(place: Place):
    worker = place.worker()
    gc.collect()  # files of tests before this one
    files = len(os.listdir("/proc/self/fd"))
    place.tell(b"0-0", [bytes(BIG)])
    worker.close()
    assert place.hear_out() == []
    assert not ready(place.server, 0)
    assert len(os.listdir("/proc/self/fd")) == files - 2
    again = place.worker()  # its name is free
    assert place.tell(b"0-0", [b"anew"])
    assert again.receive() == [[b"anew"]]


# What is no message

GARBAGE = {
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "no-frames": struct.pack("<I", 0),
    "frames": struct.pack("<I", 4097),
    "most": b"\xff" * 64,
    "bytes": struct.pack("<I2Q", 2, 1 << 40, 1),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_the_channel_that_it_came_on_and_no_other(
    place: Place, garbage: bytes, caplog: pytest.LogCaptureFixture
):
    other = place.worker(b"0-0")
    unknown = place.stranger(garbage)
    known = place.stranger(wire(b"1-0") + wire(b"whole", b"before") + garbage + wire(b"after"))
    with caplog.at_level(logging.ERROR, "headrace.trainers"):
        assert place.hear_out() == [(b"1-0", [b"whole", b"before"])]
    assert len(caplog.records) == 2
    assert "channel-3 to workers is closed: a message of" in caplog.text
    for end in (unknown, known):
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(1) == b""
    assert place.tell(b"1-0", [b"x"]) is False
    other.send([b"on"])
    assert place.hear_out() == [(b"0-0", [b"on"])]


def test_random_bytes_never_take_the_exchange_down(place: Place):
    other = place.worker(b"0-0")
    for seed in range(300):
        chance = random.Random(seed)
        start = b"" if seed % 3 else wire(b"%d-1" % seed)
        count = struct.pack("<I", chance.randint(0, 4)) if seed % 2 else b""
        place.stranger(start + count + chance.randbytes(chance.randint(0, 200))).close()
    place.hear_out()
    other.send([b"on"])
    assert place.hear_out()[-1] == (b"0-0", [b"on"])


def test_a_worker_that_gets_invalid_bytes_raises_an_error():
    near, far = socket.socketpair()
    with near, far:
        far.sendall(wire(b"fine") + struct.pack("<I", 4097))
        with pytest.raises(ValueError, match="a message of 4097 frames came: 1 to 4096"):
            Channel(near).receive()


# Names and costs


@pytest.mark.parametrize("size", [90, 107, 108, 109])
def test_a_path_may_be_as_long_as_an_address_and_longer(tmp_path: Path, size: int):
    with short_directory(size - len("/workers")) as directory:
        place = Place(directory)
        assert len(os.fsencode(place.path)) == size
        place.worker().send([b"x"])
        assert place.hear_out() == [(b"0-0", [b"x"])]
        place.close()


@contextlib.contextmanager
def short_directory(size: int) -> Iterator[Path]:
    """A directory whose path has so many bytes."""
    start = f"/dev/shm/headrace-test-{os.getpid()}-"
    path = Path(start + "x" * (size - len(start)))
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        path.rmdir()


# Trainers


def test_a_trainer_that_reads_nothing_is_cut_off_before_much_is_kept_for_it(tmp_path: Path):
    server = ChannelServer(tmp_path / "trainers", 4 + SPARE, lambda name: True)
    assert not server.anybody
    trainer = Channel.connect(server.path, [b"hello"])
    assert list(server.hear()) == []  # it was let in
    ((name, said),) = server.hear()
    assert said == [b"hello"] and server.anybody
    told = 0
    while server.tell(name, [bytes(1 << 16)]):
        told += 1
        assert told < 1000
    assert told >= 128 and not server.anybody and not server.tell(name, [b"more"])
    assert len(trainer.receive()) >= 1  # what had left before can still be read
    trainer.close()
    server.close()


def test_payload_waits_for_a_trainer_up_to_its_own_bound_and_then_it_is_cut_off(tmp_path: Path):
    server = ChannelServer(tmp_path / "trainers", 4 + SPARE, lambda name: True)
    trainer = Channel.connect(server.path, [b"hello"])
    assert list(server.hear()) == []
    ((name, _),) = server.hear()
    batch = [b"header", bytes(BIG)]
    assert server.send_payload(name, batch, BIG) and server.tell(name, [b"answer"])
    received: list[list[bytes]] = []
    while len(received) < 2:
        received += trainer.receive()
        list(server.hear())
    assert received == [batch, [b"answer"]]
    assert server.send_payload(name, batch, BIG) and server.send_payload(name, batch, BIG)
    assert not server.send_payload(name, batch, BIG), "nothing bounds what waits for it"
    assert not server.anybody and not server.send_payload(name, batch, BIG)
    trainer.close()
    server.close()


def test_a_trainer_that_sends_much_at_once_is_read_to_its_end_and_others_have_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace_server.process.channel_server.TURN_S", 0.0)
    server = ChannelServer(tmp_path / "trainers", 4 + SPARE, lambda name: True)
    much = Channel.connect(server.path, [b"0"])
    little = Channel.connect(server.path, [b"0"])
    for number in range(1, 100):
        much.send([b"%d" % number])
    much.close()
    heard: dict[bytes, list[int]] = {}
    turns = 0
    while len(heard.get(b"\0channel-1", ())) < 100:
        assert server.unheard or ready(server, PATIENCE_S)
        for name, (said,) in server.hear():
            heard.setdefault(name, []).append(int(said))
        turns += 1
        if turns == 50:
            little.send([b"1"])
    assert turns >= 100, "it was heard for more than a moment at a time"
    assert heard == {b"\0channel-1": list(range(100)), b"\0channel-2": [0, 1]}
    while server.unheard or ready(server, 0):
        list(server.hear())
    assert server.tell(b"\0channel-2", [b"here"]) and not server.tell(b"\0channel-1", [b"gone"])
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
        assert strangers[0].recv(1) == b"" and worker.receive() == [] and not worker.ended
        assert place.tell(b"0-0", [b"still here"])
        assert place.worker(b"1-0") and place.tell(b"1-0", [b"x"])
    finally:
        place.close()


def test_a_channel_of_a_session_outlives_any_number_of_silent_ones(tmp_path: Path):
    used: set[bytes] = set()
    server = ChannelServer(tmp_path / "trainers", 1 + SPARE, used.__contains__)
    trainer = Channel.connect(server.path, [b"hello"])
    while not used:
        used.update(name for name, _ in server.hear())
    silent = [Channel.connect(server.path, [b"x"]) for _ in range(100)]
    while ready(server, 0):
        list(server.hear())
    (name,) = used
    assert server.tell(name, [b"still here"]) and connected_to(server) == 1 + SPARE
    for channel in (trainer, *silent):
        channel.close()
    server.close()


def test_an_exchange_without_descriptors_waits_and_accepts_when_there_are_some(tmp_path: Path):
    place = Place(tmp_path)
    try:
        worker = place.worker(b"0-0")
        late = place.stranger(b"")
        with no_descriptors():
            place.hear_out()  # and it is not always ready
            assert place.tell(b"0-0", [b"meanwhile"])
        place.server.tick()
        place.hear_out()
        assert connected_to(place.server) == 2 and not worker.ended
        late.close()
    finally:
        place.close()
