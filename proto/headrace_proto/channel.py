"""One end of a Unix socket that carries messages of frames, between processes of one host.

    message   count of frames │ length of each │ frame │ frame │ …
              4 bytes           8 bytes each

The reader gets a message that was written whole, even if its writer died right after; it never gets
half a message.  ``post`` never waits: it keeps what it can not write now, and ``flush`` writes it
when the other end reads on.  The caller of ``post`` has to bound how much is kept.  Bytes that are
no message end their channel.

ZeroMQ would pass each message through a thread at either end; on few cores that costs more than
all other handling of a small message.  Client and server both use channels, so it is in this
package.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

Frame = bytes | memoryview

_COUNT = struct.Struct("<I")
_ONE = struct.Struct("<IQ")  # the head of a message of one frame
_ONE_BYTES = _ONE.size
_READ_BYTES = 1 << 18
#: Maximum reads from one channel before the others get their turn.
_MOST_READS = 16
#: Maximum frames of one message, and bytes of all of them: more can only be a fault.
_MOST_FRAMES = 4096
_MOST_BYTES = 1 << 40
#: Maximum pieces written by one system call (the kernel's limit is 1024).
_MOST_PIECES = 512
#: Longest path of a socket that the kernel takes (sun_path, less its final 0).
_MOST_PATH = 107
#: Memory of a queued piece besides its bytes (measured): small messages are mostly that.
_PIECE_BYTES = 350
#: Pieces of a message that has to wait are joined up to this many bytes.
_MOST_JOINED = 16 << 10
#: Errors after which a write may succeed a moment later.
_LATER = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


class Channel:
    """One end.  Received messages have a bounded number of frames and of bytes."""

    def __init__(
        self, end: socket.socket, most_frames: int = _MOST_FRAMES, most_bytes: int = _MOST_BYTES
    ) -> None:
        self._socket = end
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        # Reused: ``recv`` would map and unmap a buffer at each call, which costs more than the
        # rest.
        self._room = memoryview(bytearray(_READ_BYTES))
        self._got = bytearray()
        self._unsent: deque[memoryview] = deque()
        self.unsent_memory = 0  # of unsent messages
        self.ended = False  # no more messages will come
        self.waits = False  # unsent pieces wait for the other end to read
        self.fault = ""  # why received bytes are no message

    @classmethod
    def connect(
        cls, path: Path | str, first: Sequence[Frame], most_bytes: int = _MOST_BYTES
    ) -> Channel:
        """Connect to the end that listens at a path, and send a first message."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = cls(end, most_bytes=most_bytes)
        try:
            with address_of(Path(path)) as address:
                end.connect(address)
            channel.post(first)
        except BaseException:
            end.close()
            raise
        return channel

    def fileno(self) -> int:
        return self._socket.fileno()

    def post(self, frames: Sequence[Frame]) -> bool:
        """Write as much of a message as is possible now; return whether some of it has to wait.

        Frames that wait must not change before they are written.  OSError: the other end is gone.
        """
        if len(frames) == 1 and type(frames[0]) is bytes:
            pieces: list[Frame] = [_ONE.pack(1, len(frames[0])) + frames[0]]
            total, written = len(pieces[0]), 0
        elif not 1 <= len(frames) <= _MOST_FRAMES:
            raise ValueError(f"frames: a message has 1 to {_MOST_FRAMES} frames, not {len(frames)}")
        else:
            parts = [frame if type(frame) is bytes else _flat(frame) for frame in frames]
            head = struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts))
            pieces = [head, *(part for part in parts if part)]
            total, written = sum(map(len, pieces)), 0
        if not self.waits and len(pieces) <= _MOST_PIECES:
            written = self._write(pieces)
            if written == total:
                return False
        if total <= _MOST_JOINED:
            pieces = [b"".join(pieces)]
        self._unsent.extend(map(memoryview, pieces))
        self.unsent_memory += total + len(pieces) * _PIECE_BYTES
        self._drop(written)
        if not self.waits and len(pieces) > _MOST_PIECES:
            return self.flush()
        self.waits = True
        return True

    def flush(self) -> bool:
        """Write kept pieces; return whether some have to wait.  OSError: the other end is gone."""
        while self._unsent:
            written = self._write(list(itertools.islice(self._unsent, _MOST_PIECES)))
            if not written:
                break
            self._drop(written)
        self.waits = bool(self._unsent)
        return self.waits

    def _write(self, pieces: Sequence[Frame]) -> int:
        """Return how many bytes were written; 0 where none can be written now."""
        try:
            if len(pieces) == 1:
                return self._socket.send(pieces[0], socket.MSG_DONTWAIT)
            return self._socket.sendmsg(pieces, (), socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno in _LATER:
                return 0
            raise

    def _drop(self, written: int) -> None:
        unsent = self._unsent
        self.unsent_memory -= written
        while written:
            first = unsent[0]
            if len(first) > written:
                unsent[0] = first[written:]
                break
            written -= len(first)
            unsent.popleft()
            self.unsent_memory -= _PIECE_BYTES

    def take(self) -> list[list[bytes]]:
        """Return the whole messages that have come.

        ``ended`` shows when no more can, and ``fault`` describes bytes that are no message.
        """
        messages: list[list[bytes]] = []
        for _ in range(_MOST_READS):
            try:
                size = self._socket.recv_into(self._room, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:  # reset: the other end closed with unread bytes
                size = 0
            if not size:
                self.ended = True
                break
            at = 0
            if not self._got:  # mostly whole messages, which need no buffer
                at = self._cut(self._room[:size], messages)
            if at < size:
                self._got += self._room[at:size]
            if size < _READ_BYTES:
                break
        if len(self._got) >= _COUNT.size:
            with memoryview(self._got) as got:
                at = self._cut(got, messages)
            if at:
                del self._got[:at]
        return messages

    def _cut(self, got: memoryview, messages: list[list[bytes]]) -> int:
        """Cut off the whole messages; return where the rest begins."""
        at, end, most = 0, len(got), self._most_bytes
        while (body := at + _ONE_BYTES) <= end:  # as most messages are: of one frame, and whole
            count, length = _ONE.unpack_from(got, at)
            if count != 1 or length > end - body or length > most:
                break
            at = body + length
            messages.append([bytes(got[body:at])])
        while end - at >= _COUNT.size and not self.fault:
            (count,) = _COUNT.unpack_from(got, at)
            body = at + _COUNT.size + 8 * count
            if not 1 <= count <= self._most_frames:
                allowed = f"1 to {self._most_frames} are allowed"
                self.fault = f"a message of {count} frames came: {allowed}"
                break
            if end < body:
                break
            lengths = struct.unpack_from(f"<{count}Q", got, at + _COUNT.size)
            total = sum(lengths)
            if total > most:
                self.fault = f"a message of {total} bytes came: at most {most} are allowed"
                break
            if end < body + total:
                break
            frames = []
            for length in lengths:
                frames.append(bytes(got[body : body + length]))
                body += length
            messages.append(frames)
            at = body
        return at

    def close(self) -> None:
        self._socket.close()


def _flat(frame: Frame) -> Frame:
    view = memoryview(frame)
    return view.cast("B") if view.nbytes else b""


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield the address of a socket; a long path is replaced by one through an open directory."""
    if len(os.fsencode(path)) <= _MOST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
