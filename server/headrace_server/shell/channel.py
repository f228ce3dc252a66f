"""The channel between the router and its workers: a Unix socket that carries messages of frames.

    worker  Channel.connect ── send, receive ──►  Exchange.hear, tell  router

A message is the number of its frames, their lengths, and then the frames.  A worker's ``send`` waits
until all is written; the router never waits: what can not be written now is kept and written when
the worker reads on.  ZeroMQ would pass each message through a thread at either end; on few cores
that costs more than all else that is done to a small message.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["Channel", "Exchange"]

Frame = bytes | memoryview

_COUNT = struct.Struct("<I")
_READ_BYTES = 1 << 18
#: Frames of one message, and bytes of a frame: more can only be a fault.
_MOST_FRAMES = 4096
_MOST_BYTES = 1 << 40
#: Pieces that one system call takes.
_MOST_PIECES = 512


class Channel:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._got = bytearray()
        self._unsent: deque[memoryview] = deque()
        self.ended = False  # nothing more will come
        self.waits = False  # for the other end to read

    @classmethod
    def connect(cls, path: Path, identity: bytes) -> Channel:
        """A worker's end; the identity is its first message."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(_short(path))
        except OSError:
            end.close()
            raise
        channel = cls(end)
        channel.send([identity])
        return channel

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frames: Sequence[Frame]) -> None:
        """Write a message, waiting where the other end does not read."""
        self._queue(frames)
        while self.flush():
            select.select((), (self._socket,), ())

    def post(self, frames: Sequence[Frame]) -> None:
        """Write what can be written of a message, and keep the rest."""
        self._queue(frames)
        self.flush()

    def _queue(self, frames: Sequence[Frame]) -> None:
        head = struct.pack(f"<I{len(frames)}Q", len(frames), *(len(f) for f in frames))
        self._unsent.append(memoryview(head))
        self._unsent.extend(memoryview(frame) for frame in frames if len(frame))

    def flush(self) -> bool:
        """Write what is kept; whether some of it has to wait.  OSError: the other end is gone."""
        unsent = self._unsent
        while unsent:
            pieces = [unsent[i] for i in range(min(len(unsent), _MOST_PIECES))]
            try:
                written = self._socket.sendmsg(pieces, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            while written:
                first = unsent[0]
                if len(first) > written:
                    unsent[0] = first[written:]
                    break
                written -= len(first)
                unsent.popleft()
        return False

    def receive(self) -> list[list[bytes]]:
        """The whole messages that have come.  ``ended`` tells when no more can."""
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
                break
            self._got += data
            if len(data) < _READ_BYTES:
                break
        return self._parsed()

    def _parsed(self) -> list[list[bytes]]:
        messages = []
        at, got = 0, self._got
        while len(got) - at >= _COUNT.size:
            (count,) = _COUNT.unpack_from(got, at)
            body = at + _COUNT.size + 8 * count
            if count > _MOST_FRAMES:
                raise ValueError(f"a message of {count} frames came: the channel is out of step")
            if len(got) < body:
                break
            lengths = struct.unpack_from(f"<{count}Q", got, at + _COUNT.size)
            if sum(lengths) > _MOST_BYTES:
                raise ValueError(f"a message of {sum(lengths)} bytes came: out of step")
            if len(got) < body + sum(lengths):
                break
            frames = []
            with memoryview(got) as view:
                for length in lengths:
                    frames.append(bytes(view[body : body + length]))
                    body += length
            messages.append(frames)
            at = body
        if at:
            del got[:at]
        return messages

    def close(self) -> None:
        self._socket.close()


class Exchange:
    """The router's end: all workers, by identity."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(_short(path))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._channels: dict[int, Channel] = {}  # by file number
        self._names: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}

    def fileno(self) -> int:
        """Readable when there is something to hear, or to be written on."""
        return self._epoll.fileno()

    def hear(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """What workers have said, each with its identity; to be gone through to its end."""
        for number, events in self._epoll.poll(0):
            if number == self._listener.fileno():
                self._accept()
                continue
            channel = self._channels.get(number)
            if channel is None:
                continue
            if events & select.EPOLLOUT:
                self._write(number, channel)
            if events & ~select.EPOLLOUT:
                yield from self._listen(number, channel)

    def _listen(self, number: int, channel: Channel) -> Iterator[tuple[bytes, list[bytes]]]:
        for frames in channel.receive():
            name = self._names.get(number)
            if name is not None:
                yield name, frames
            else:
                self._names[number] = frames[0]
                self._numbers[frames[0]] = number
        if channel.ended:
            self._drop(number)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                end, _ = self._listener.accept()
                end.setblocking(False)
                self._channels[end.fileno()] = Channel(end)
                self._epoll.register(end, select.EPOLLIN)

    def tell(self, identity: bytes, frames: Sequence[Frame]) -> bool:
        """Say something to a worker; False when it is not there."""
        number = self._numbers.get(identity)
        if number is None:
            return False
        channel = self._channels[number]
        channel._queue(frames)
        return self._write(number, channel)

    def _write(self, number: int, channel: Channel) -> bool:
        try:
            waits = channel.flush()
        except OSError:  # dead: what it has said before can still be read
            channel._unsent.clear()
            waits = False
        if waits != channel.waits:
            channel.waits = waits
            self._epoll.modify(number, select.EPOLLIN | (select.EPOLLOUT if waits else 0))
        return True

    def _drop(self, number: int) -> None:
        self._epoll.unregister(number)
        self._channels.pop(number).close()
        name = self._names.pop(number, None)
        if name is not None and self._numbers.get(name) == number:
            del self._numbers[name]

    def close(self) -> None:
        for number in list(self._channels):
            self._drop(number)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def _short(path: Path) -> str:
    """A path that fits the 108 bytes which the address of a Unix socket has."""
    near = os.path.relpath(path)
    return min(str(path), near, key=len)
