"""The members of a tar file, from any of them on.

The walk reads headers itself: the standard library takes a damaged header for the end of the
archive, and later members would be lost silently.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from headrace_proto.errors import rewording

from .forward_files import Damaged

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
    data: int  # the byte at which its content begins
    size: int
    is_file: bool

    @property
    def after(self) -> int:
        """The byte at which the next member begins, or the archive ends."""
        return self.data + _whole_blocks(self.size)


def members(stream: BinaryIO, byte: int) -> Iterator[Member]:
    """Yield the members from the one at a byte on.  Damaged where the archive breaks off."""
    names: dict[str, str] = {}  # what headers before a member's own say of it
    begin = at = byte
    ended = False  # blocks of zeros were read, which a header may follow
    while True:
        _seek(stream, at)
        block = stream.read(_BLOCK)
        if not block and (ended or not at):
            return
        if len(block) < _BLOCK:
            raise _cut_off(at + len(block))
        here, at = at, at + _BLOCK
        ended = not any(block)
        if ended:  # concatenated archives continue after their ends
            begin, names = at, {}
            continue
        with rewording(Damaged, f"the header at byte {here} is damaged: ", tarfile.HeaderError):
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if header.type in _OF_THE_NEXT:
            names.update(_of_the_next(header.type, _extension(stream, at, header.size)))
            at += _whole_blocks(header.size)
            continue
        member = _member(header, names, begin, at)
        begin = at = member.after
        names = {}
        yield member


def content(stream: BinaryIO, member: Member) -> bytes:
    """Return the content of the member that was yielded last."""
    _seek(stream, member.data)
    parts, left = [], member.size
    while left and (part := stream.read(min(left, _READ))):
        parts.append(part)
        left -= len(part)
    if left:
        raise _cut_off(member.data + member.size - left)
    return b"".join(parts)


def _of_the_next(kind: bytes, text: bytes) -> dict[str, str]:
    """Return the names and sizes in the content of a header that describes the next member."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    found = {} if kind == tarfile.GNUTYPE_LONGLINK else _extended(text)
    return {} if kind == tarfile.XGLTYPE else found


def _member(header: tarfile.TarInfo, names: dict[str, str], begin: int, data: int) -> Member:
    size_text = names.get("size", str(header.size))
    if not _SIZE.fullmatch(size_text):
        raise Damaged(f"the member at byte {begin} gives the size {size_text!r:.40}")
    size = 0 if header.islnk() or header.issym() or header.isdir() else int(size_text)
    sparse = header.type == tarfile.GNUTYPE_SPARSE or any("sparse" in key for key in names)
    if sparse:
        raise Damaged(f"the member at byte {begin} is sparse; pack it without -S")
    return Member(names.get("path", header.name), begin, data, size, header.isreg())


def _whole_blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _seek(stream: BinaryIO, byte: int) -> None:
    # Only forward, so that compressed archives are read once.
    if stream.tell() != byte:
        stream.seek(byte)


def _extension(stream: BinaryIO, at: int, size: int) -> bytes:
    if not 0 <= size <= _MAX_EXTENDED:
        raise Damaged(f"an extended header has {size} bytes, not 0 … {_MAX_EXTENDED}")
    text = stream.read(_whole_blocks(size))
    if len(text) < _whole_blocks(size):
        raise _cut_off(at + len(text))
    return text[:size]


def _extended(content: bytes) -> dict[str, str]:
    """Return the entries of an extended header: ``LENGTH KEY=VALUE\\n`` …"""
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
