"""The members of a tar file, from any of them on.

The walk reads headers itself: the standard library takes a damaged header for the end of the
archive, and later members would be lost silently.
"""

from __future__ import annotations

import re
import tarfile
from typing import BinaryIO, NamedTuple

from headrace_proto.errors import rewording

from .record_streams import Damaged

_BLOCK = tarfile.BLOCKSIZE
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
#: Headers that describe the member after them.
_OF_THE_NEXT = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, *_LONG)
#: Maximum size of an extended header, which holds some names and times.
_MAX_EXTENDED = 1 << 20
#: Sizes below 2**59, so that a seek beyond a member is possible.
_SIZE = re.compile("[0-9]{1,17}")
#: Bytes read at once, so that a damaged size takes no more memory than the archive has.
_READ = 1 << 24


class Member(NamedTuple):
    name: str
    byte: int  # of its first header
    size: int
    is_file: bool


class Members:
    """Members one after the other; the data of the last returned one can be read."""

    def __init__(self, stream: BinaryIO, byte: int) -> None:
        self._stream = stream
        self._data = self._next = byte
        self._last_size = 0
        self._ended = False  # blocks of zeros were read, which a header may follow
        self._finished = False

    def next(self) -> Member | None:
        """Return the next member; None at the end.  Damaged where the archive breaks off."""
        if self._finished:
            return None
        names: dict[str, str] = {}
        self._seek(self._next)
        begin = before_end = self._next
        while True:
            block = self._stream.read(_BLOCK)
            at = self._next
            if not block and self._ended:
                self._finished, self._next = True, before_end
                return None
            if len(block) < _BLOCK:
                raise _cut_off(at + len(block))
            self._next += _BLOCK
            if not any(block):  # concatenated archives continue after their ends
                self._ended, begin, names = True, self._next, {}
                continue
            self._ended = False
            with rewording(Damaged, f"the header at byte {at} is damaged: ", tarfile.HeaderError):
                header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if header.type not in _OF_THE_NEXT:
                return self._member(header, names, begin)
            names.update(self._of_the_next(header))

    def _of_the_next(self, header: tarfile.TarInfo) -> dict[str, str]:
        """Read names and sizes from a header that describes the next member."""
        content = self._extension(header.size)
        if header.type == tarfile.GNUTYPE_LONGNAME:
            return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
        found = {} if header.type == tarfile.GNUTYPE_LONGLINK else _extended(content)
        return {} if header.type == tarfile.XGLTYPE else found

    def _member(self, header: tarfile.TarInfo, names: dict[str, str], begin: int) -> Member:
        size_text = names.get("size", str(header.size))
        if not _SIZE.fullmatch(size_text):
            raise Damaged(f"the member at byte {begin} gives the size {size_text!r:.40}")
        size = 0 if header.islnk() or header.issym() or header.isdir() else int(size_text)
        sparse = header.type == tarfile.GNUTYPE_SPARSE or any("sparse" in key for key in names)
        if sparse:
            raise Damaged(f"the member at byte {begin} is sparse; pack it without -S")
        self._data, self._last_size = self._next, size
        self._next += -(-size // _BLOCK) * _BLOCK
        name = names.get("path", header.name)
        return Member(name, begin, size, header.isreg())

    @property
    def byte(self) -> int:
        """The byte at which the next member begins, or the archive ends."""
        return self._next

    def data(self) -> bytes:
        """Return the content of the last returned member."""
        self._seek(self._data)
        parts, left = [], self._last_size
        while left and (part := self._stream.read(min(left, _READ))):
            parts.append(part)
            left -= len(part)
        if left:
            raise _cut_off(self._data + self._last_size - left)
        return b"".join(parts)

    def close(self) -> None:
        self._stream.close()

    def _seek(self, byte: int) -> None:
        # Only forward, so that compressed archives are read once.
        if self._stream.tell() != byte:
            self._stream.seek(byte)

    def _extension(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_EXTENDED:
            raise Damaged(f"an extended header has {size} bytes, not 0 … {_MAX_EXTENDED}")
        padded = -(-size // _BLOCK) * _BLOCK
        content = self._stream.read(padded)
        if len(content) < padded:
            raise _cut_off(self._next + len(content))
        self._next += padded
        return content[:size]


def _extended(content: bytes) -> dict[str, str]:
    """``LENGTH KEY=VALUE\\n`` …"""
    found = {}
    while content:
        length, space, _ = content.partition(b" ")
        if not (space and _SIZE.fullmatch(length.decode("latin-1"))) or not (
            0 < int(length) <= len(content)
        ):
            raise Damaged("an extended header is damaged")
        record, content = content[: int(length)], content[int(length) :]
        key, _, value = record[len(length) + 1 :].rstrip(b"\n").partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
    return found


def _cut_off(byte: int) -> Damaged:
    return Damaged(f"the archive is cut off at byte {byte}", "truncated_file")
