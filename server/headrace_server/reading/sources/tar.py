"""Tar files in the WebDataset layout (.tar, .tar.gz, .tgz): a stream per file.

    dir/0001.flac  dir/0001.cls  dir/0001.json │ dir/0002.flac …
    └─ key ──┘└ column                         └─ the next example

Neighbouring files whose names agree up to the first dot of the last part are one example; the rest
after that dot names the column.  ``__key__`` is the column of keys.  The last ending determines the
kind of content: .npy is an array, .cls an int64, all others are bytes.  Files without a dot,
hidden files and members that are no files belong to no example.

The standard library parses the headers, one member at a time from the byte of any of them on.  Its
own walk over an archive ends without a word at a damaged header, and later members would be lost.
"""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from typing import BinaryIO, NamedTuple

import numpy as np

from headrace_proto import limits

from ...files.manifest import DataFile
from ..columns import Strings
from ..example_rows import Place, Record, Records, file_streams
from ..forward_files import Damaged, open_forward
from ..source import Opening, Source, StreamSource
from .npz import array_column, npy_array

KEY = "__key__"
#: Bound of the size of a member, so that a seek beyond it is possible.
_MOST_SIZE = 1 << 59
#: Bytes read at once, so that a damaged size takes no more memory than the archive has.
_READ = 1 << 24
#: Error text for a header whose extension claims more bytes than there is memory.
_IMPOSSIBLE = "it gives an impossible size"
#: The end of the file, and a block of zeros, which ends an archive.
_EMPTY, _ZEROS = tarfile.EmptyHeaderError, tarfile.EOFHeaderError  # type: ignore[attr-defined]
#: Exceptions of the standard library for headers that are damaged, or made to harm.
_UNSOUND = (
    *(tarfile.HeaderError, ValueError, IndexError),
    *(OverflowError, MemoryError, RecursionError),
)


class Tar(Source):
    """Neighbouring members of one stem; a stream per file."""

    @classmethod
    def open(cls, opening: Opening) -> StreamSource:
        return file_streams(opening, partial(_examples, opening.features), opening.features)


class Member(NamedTuple):
    """A member of an archive; ``byte`` is that of its first header, ``after`` of the next one's."""

    name: str
    byte: int
    data: int
    size: int
    after: int
    is_file: bool


class _Archive(tarfile.TarFile):
    def next(self) -> None:
        """Read no header: ``members`` does so, and the constructor would, at once."""


def members(stream: BinaryIO, byte: int) -> Iterator[Member]:
    """Yield the members from the one at a byte on.  Damaged where the archive breaks off."""
    archive = _Archive(fileobj=stream, encoding="utf-8", errors="surrogateescape")
    archive.offset = byte
    ended = False  # blocks of zeros were read, which a header may follow
    while True:
        begin = archive.offset
        _seek(stream, begin)
        archive.pax_headers = {}  # a walk from a later member does not see those of all members
        try:
            info = tarfile.TarInfo.fromtarfile(archive)
        except _ZEROS:  # concatenated archives continue after their ends
            archive.offset, ended = begin + tarfile.BLOCKSIZE, True
            continue
        except _UNSOUND as error:
            if isinstance(error, _EMPTY) and (ended or not begin):
                return
            if str(error) in ("empty header", "truncated header"):
                raise _cut_off(max(begin, stream.tell())) from None
            raise Damaged(
                f"the header at byte {begin} is damaged: {str(error) or _IMPOSSIBLE}"
            ) from None
        if info.issparse():
            raise Damaged(f"the member at byte {begin} is sparse; pack it without -S")
        size = info.pax_headers.get("size", str(info.size))
        if size != str(info.size) or not 0 <= info.size < _MOST_SIZE:
            raise Damaged(f"the member at byte {begin} gives the size {size!r:.40}")
        ended = False
        yield Member(info.name, begin, info.offset_data, info.size, archive.offset, info.isreg())


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


def _seek(stream: BinaryIO, byte: int) -> None:
    # Only forward, so that compressed archives are read once.
    if stream.tell() != byte:
        stream.seek(byte)


def _cut_off(byte: int) -> Damaged:
    return Damaged(f"the archive is cut off at byte {byte}", "truncated_file")


def _examples(wanted: Collection[str] | None, file: DataFile, walk: Records) -> Iterator[Record]:
    """Yield the examples of a file."""
    with open_forward(file, walk.place.byte) as stream:
        parts = _parts_of_examples(members(stream, walk.place.byte))
        for key, group in groupby(parts, lambda part: part.key):
            row: dict[str, object] = {KEY: key.encode(errors="surrogateescape")}
            wrong, first = "", next(group)
            here = walk.place = Place(first.member.byte, walk.place.record)
            for part in chain([first], group):
                column = part.column
                try:
                    if len(row) > limits.MAX_COLUMNS:
                        raise ValueError(
                            f"the example has more than {limits.MAX_COLUMNS} columns: names that "
                            "agree up to their first dot are one example"
                        )
                    if column in row:
                        raise ValueError(f"the example has two members for the column {column!r}")
                    read = wanted is None or column in wanted
                    row[column] = _decoded(column, content(stream, part.member)) if read else None
                except ValueError as error:
                    wrong = wrong or f"member {part.member.name!r}: {error}"
            walk.place = Place(part.member.after, here.record + 1)
            yield Record(here, None, wrong) if wrong else Record(here, row)


class _Part(NamedTuple):
    """A member that belongs to an example: the example's key, and the column that it holds."""

    key: str
    column: str
    member: Member


def _parts_of_examples(found: Iterable[Member]) -> Iterator[_Part]:
    for member in found:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if member.is_file and stem and dot and ending:
            yield _Part(f"{folder}{slash}{stem}", ending, member)


def _decoded(column: str, content: bytes) -> object:
    ending = column.rpartition(".")[2]
    if ending == "npy":
        array = array_column(npy_array(np.frombuffer(content, np.uint8)))
        return array.to_objects() if isinstance(array, Strings) else array
    if ending == "npz":
        raise ValueError("it holds several arrays; store each as a .npy of its own")
    if ending == "cls":
        try:
            return int(content)
        except ValueError:
            raise ValueError(f"{content!r:.60} is no integer, as a .cls is") from None
    return content
