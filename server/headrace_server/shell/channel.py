"""The channel between the router and its workers: a Unix socket that carries messages of frames.

    worker  Channel.connect ── send, receive ──►  Exchange.hear, tell  router

    message   count of frames │ length of each │ frame │ frame │ …
              4 bytes           8 bytes each

A message that was written whole is heard, though its worker died right after; half a message
never is.  A worker's ``send`` waits until all is written.  The router never waits: what can not be
written now is kept, and written when the worker reads on.  Only memory bounds how much that is, so
whoever tells has to bound it (by credits, or by what the worker has announced).  What is no message
ends the channel that it came on, and no other.

ZeroMQ would pass each message through a thread at either end; on few cores that costs more than all
else that is done to a small message.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["Channel", "Exchange"]

logger = logging.getLogger("headrace.router")

Frame = bytes | memoryview

_COUNT = struct.Struct("<I")
_READ_BYTES = 1 << 18
#: Reads from one channel before the others get their turn.
_MOST_READS = 16
#: Frames of one message, and bytes of all of them: more can only be a fault.
_MOST_FRAMES = 4096
_MOST_BYTES = 1 << 40
#: Pieces that one system call takes (the kernel's limit is 1024).
_MOST_PIECES = 512
#: What the kernel takes as the path of a socket (sun_path, less its final 0).
_MOST_PATH = 107
#: The time between two looks for a router that is not there yet.
_LOOK_S = 0.005
#: Reasons for which a write may go well a moment later.
_LATER = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
_IDENTITY = re.compile(rb"[0-9]{1,9}-[0-9]{1,9}")  # worker-life


class Channel:
    """One end."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        # Kept: ``recv`` maps and unmaps so many bytes at each call, which costs more than the rest.
        self._room = memoryview(bytearray(_READ_BYTES))
        self._got = bytearray()
        self._unsent: deque[memoryview] = deque()
        self.ended = False  # nothing more will come
        self.waits = False  # for the other end to read
        self.fault = ""  # why what comes is no message

    @classmethod
    def connect(cls, path: Path, identity: bytes, patience_s: float = 0.0) -> Channel:
        """A worker's end; the identity, ``worker-life``, is its first message.

        A router that is not there yet is waited for.
        """
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = cls(end)
        deadline = time.monotonic() + patience_s
        try:
            with _address(path) as address:
                while True:
                    try:
                        end.connect(address)
                        break
                    except (FileNotFoundError, ConnectionRefusedError):
                        if time.monotonic() >= deadline:
                            raise
                        time.sleep(_LOOK_S)
            channel.send([identity])
        except OSError:
            end.close()
            raise
        return channel

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frames: Sequence[Frame]) -> None:
        """Write a message, waiting where the other end does not read.

        OSError: the other end is gone.
        """
        self.queue(frames)
        if self.flush():
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            while self.flush():
                poll.poll()

    def queue(self, frames: Sequence[Frame]) -> None:
        """Keep a message until it is written; its frames must not change before that."""
        if not 1 <= len(frames) <= _MOST_FRAMES:
            raise ValueError(f"frames: a message has 1 to {_MOST_FRAMES} frames, not {len(frames)}")
        views = [memoryview(frame) for frame in frames]
        lengths = [view.nbytes for view in views]
        head = struct.pack(f"<I{len(views)}Q", len(views), *lengths)
        pieces = [view.cast("B") for view in views if view.nbytes]
        self._unsent.append(memoryview(head))
        self._unsent.extend(pieces)

    def flush(self) -> bool:
        """Write what is kept; whether some of it has to wait.  OSError: the other end is gone."""
        unsent = self._unsent
        while unsent:
            pieces = list(itertools.islice(unsent, _MOST_PIECES))
            try:
                written = self._socket.sendmsg(pieces, (), socket.MSG_DONTWAIT)
            except OSError as error:
                if error.errno in _LATER:
                    return True
                raise
            while written:
                first = unsent[0]
                if len(first) > written:
                    unsent[0] = first[written:]
                    break
                written -= len(first)
                unsent.popleft()
        return False

    def receive(self) -> list[list[bytes]]:
        """The whole messages that have come.  ``ended`` tells when no more can.

        ValueError: something came that is no message.
        """
        messages = self.take()
        if self.fault:
            raise ValueError(self.fault)
        return messages

    def take(self) -> list[list[bytes]]:
        """As ``receive``, but what is no message is told by ``fault``, after all before it."""
        for _ in range(_MOST_READS):
            try:
                size = self._socket.recv_into(self._room, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:  # reset: the other end closed with something unread
                size = 0
            if not size:
                self.ended = True
                break
            self._got += self._room[:size]
            if size < _READ_BYTES:
                break
        return self._parsed()

    def _parsed(self) -> list[list[bytes]]:
        messages = []
        at, got = 0, self._got
        while len(got) - at >= _COUNT.size and not self.fault:
            (count,) = _COUNT.unpack_from(got, at)
            body = at + _COUNT.size + 8 * count
            if not 1 <= count <= _MOST_FRAMES:
                self.fault = f"a message of {count} frames came: 1 to {_MOST_FRAMES} are allowed"
                break
            if len(got) < body:
                break
            lengths = struct.unpack_from(f"<{count}Q", got, at + _COUNT.size)
            total = sum(lengths)
            if total > _MOST_BYTES:
                self.fault = f"a message of {total} bytes came: at most {_MOST_BYTES} are allowed"
                break
            if len(got) < body + total:
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
        try:
            with _address(path) as address:
                self._listener.bind(address)
            self._listener.listen(1024)
        except OSError:
            self._listener.close()
            raise
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
            channel = self._channels[number]
            if events & select.EPOLLOUT:
                self._write(number, channel)
            if events & ~select.EPOLLOUT:
                yield from self._listen(number, channel)

    def _listen(self, number: int, channel: Channel) -> Iterator[tuple[bytes, list[bytes]]]:
        for frames in channel.take():
            name = self._names.get(number)
            if name is not None:
                yield name, frames
                continue
            fault = self._name(number, frames)
            if fault:
                channel.fault = fault
                break
        if channel.fault:
            name = self._names.get(number, b"a process that did not say which")
            logger.error("the channel of worker %s is closed: %s", name.decode(), channel.fault)
        if channel.fault or channel.ended:
            self._drop(number)

    def _name(self, number: int, frames: list[bytes]) -> str:
        """Take a first message; what is wrong with it."""
        name = frames[0]
        if len(frames) != 1 or not _IDENTITY.fullmatch(name):
            return f"its first message is {len(frames)} frames, {name[:32]!r} …, and no identity"
        if name in self._numbers:
            return f"worker {name.decode()} is connected already, and that connection stands"
        self._names[number] = name
        self._numbers[name] = number
        return ""

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
        channel.queue(frames)
        return channel.waits or self._write(number, channel)

    def _write(self, number: int, channel: Channel) -> bool:
        """Write what can be written now; False when there is nobody to read it."""
        there = True
        try:
            waits = channel.flush()
        except OSError:  # dead: what it has said before can still be read
            waits = there = False
        if waits != channel.waits:
            channel.waits = waits
            self._epoll.modify(number, select.EPOLLIN | (select.EPOLLOUT if waits else 0))
        return there

    def _drop(self, number: int) -> None:
        self._epoll.unregister(number)
        self._channels.pop(number).close()
        name = self._names.pop(number, None)
        if name is not None:
            del self._numbers[name]

    def close(self) -> None:
        for number in list(self._channels):
            self._drop(number)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a socket, by way of its open directory where its path is too long for one."""
    if len(os.fsencode(path)) <= _MOST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
