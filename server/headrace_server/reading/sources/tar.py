"""Tar files in the WebDataset layout (.tar, .tar.gz, .tgz): a stream per file, or by number where
blocks of archives are shuffled, which are then indexed once.

    dir/0001.flac  dir/0001.cls  dir/0001.json │ dir/0002.flac …
    └─ key ──┘└ column                         └─ the next example

Neighbouring files whose names agree up to the first dot of the last part are one example; the rest
after that dot names the column.  ``__key__`` is the column of keys.  The last ending determines the
kind of content: .npy is an array, .cls an int64, all others are bytes.  Files without a dot,
hidden files and members that are no files belong to no example.

The standard library parses the headers, one member at a time from the byte of any of them on, but
for plain ones of files: these would take most of the time of a row.  Its own walk over an archive
ends without a word at a damaged header, and later members would be lost.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from typing import BinaryIO, NamedTuple

import numpy as np

from headrace_proto import dtypes, limits
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ...files.index_cache import IndexCache, some_of
from ...files.manifest import DataFile, is_remote
from ...files.mapped_files import mapped
from ..columns import Strings
from ..example_rows import FilePart, Place, Record, Records, Row, file_streams
from ..forward_files import NOTHING_AFTER, Damaged, compression_of, open_forward
from ..source import Opening, Source, StreamSource
from .npz import array_column, npy_array

KEY = "__key__"
#: Bound of the size of a member, so that a seek beyond it is possible.
_MOST_SIZE = 1 << 59
#: Bytes read at once, so that a damaged size takes no more memory than the archive has.
_READ = 1 << 24
#: Mode, user, group, size, time, checksum and kind of a file in a header without an extension …
_NUMBERS = re.compile(rb"(?:[0-7]{7}[\0 ]){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})(?:\0 | \0)0")
#: … the numbers of a device, and no beginning of the name in another place.
_DEVICE = re.compile(rb"(?:[0-7]{7}[\0 ]|\0{8}){2}\0")
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
        features, numbered = opening.features, None
        if not any(compression_of(file.path) for file in opening.files):
            numbered = partial(_parts, opening)
        return file_streams(opening, partial(_examples, features), features, numbered=numbered)


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


class _Reread:
    """A stream of which a header was read, and is read once more."""

    def __init__(self, stream: BinaryIO) -> None:
        self._read, self.tell, self.seek, self.header = stream.read, stream.tell, stream.seek, b""

    def read(self, size: int) -> bytes:
        header, self.header = self.header, b""
        return header or self._read(size)


def _plain(header: bytes) -> tuple[str, int] | None:
    """Return name and size of a file whose header has no extension; None for all others."""
    name, numbers = header[:100].rstrip(b"\0"), _NUMBERS.fullmatch(header[100:157])
    if (
        numbers is None
        or header[257:262] != b"ustar"
        or not _DEVICE.fullmatch(header[329:346])
        or len(header) != tarfile.BLOCKSIZE
        or zlib.adler32(header) % (1 << 16) != _sum_with(header[148:156], int(numbers[2], 8))
        or b"\0" in name
    ):
        return None
    return name.decode(errors="surrogateescape"), int(numbers[1], 8)


def _sum_with(own: bytes, checksum: int) -> int:
    """Return the lower half of the Adler-32 of a header whose checksum is right.

    It is the sum of the bytes, as the checksum is, but for the 8 bytes of that.  ``sum`` takes
    ten times as long.
    """
    return (1 + checksum + sum(own) - 8 * ord(" ")) % 65521


def members(stream: BinaryIO, byte: int, stop: int | None = None) -> Iterator[Member]:
    """Yield the members from the one at a byte on.  Damaged where the archive breaks off."""
    reread = _Reread(stream)
    archive: _Archive | None = None
    offset = byte
    ended = False  # blocks of zeros were read, which a header may follow
    while True:
        begin = offset
        if begin == stop:
            return
        _seek(stream, begin)
        header = stream.read(tarfile.BLOCKSIZE)
        if plain := _plain(header):
            name, nbytes = plain
            data = begin + tarfile.BLOCKSIZE
            ended, offset = False, data + -(-nbytes // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            yield Member(name, begin, data, nbytes, offset, True)
            continue
        if archive is None:
            archive = _Archive(
                fileobj=reread,  # type: ignore[arg-type]
                encoding="utf-8",
                errors="surrogateescape",
            )
        reread.header = header
        archive.offset = begin
        archive.pax_headers = {}  # a walk from a later member does not see those of all members
        try:
            info = tarfile.TarInfo.fromtarfile(archive)
        except _ZEROS:  # concatenated archives continue after their ends
            offset, ended = begin + tarfile.BLOCKSIZE, True
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
        ended, offset = False, archive.offset
        yield Member(info.name, begin, info.offset_data, info.size, offset, info.isreg())


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
        for group in _groups(members(stream, walk.place.byte)):
            first = next(group)
            here = walk.place = Place(first.member.byte, walk.place.record)
            parts = chain([first], group)
            row, wrong, after = _row(wanted, partial(content, stream), parts)
            walk.place = Place(after, here.record + 1)
            yield Record(here, None, wrong) if wrong else Record(here, row)


def _row(
    wanted: Collection[str] | None,
    read: Callable[[Member], bytes | memoryview],
    parts: Iterable[_Part],
) -> tuple[dict[str, object], str, int]:
    """Return the row of an example, its fault or "", and the byte after its last member."""
    row, wrong, after = dict[str, object](), "", 0
    for part in parts:
        column, after = part.column, part.member.after
        row.setdefault(KEY, part.key.encode(errors="surrogateescape"))
        try:
            if len(row) > limits.MAX_COLUMNS:
                raise ValueError(
                    f"the example has more than {limits.MAX_COLUMNS} columns: names that "
                    "agree up to their first dot are one example"
                )
            if column in row:
                raise ValueError(f"the example has two members for the column {column!r}")
            needed = wanted is None or column in wanted
            row[column] = _decoded(column, read(part.member)) if needed else None
        except ValueError as error:
            wrong = wrong or f"member {part.member.name!r}: {error}"
    return row, wrong, after


class _Part(NamedTuple):
    """A member that belongs to an example: the example's key, and the column that it holds."""

    key: str
    column: str
    member: Member


def _groups(found: Iterable[Member]) -> Iterator[Iterator[_Part]]:
    """Yield the members of each example."""
    return (group for _, group in groupby(_parts_of_examples(found), lambda part: part.key))


def _parts_of_examples(found: Iterable[Member]) -> Iterator[_Part]:
    for member in found:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if member.is_file and stem and dot and ending:
            yield _Part(f"{folder}{slash}{stem}", ending, member)


def _decoded(column: str, content: bytes | memoryview) -> object:
    ending = column.rpartition(".")[2]
    if ending == "npy":
        array = array_column(npy_array(np.frombuffer(content, np.uint8)))
        return array.to_objects() if isinstance(array, Strings) else array
    if ending == "npz":
        raise ValueError("it holds several arrays; store each as a .npy of its own")
    if ending == "cls":
        try:
            return int(bytes(content))
        except ValueError:
            raise ValueError(f"{bytes(content)!r:.60} is no integer, as a .cls is") from None
    return content


# ── Examples by number, of archives that are not compressed.


def _parts(opening: Opening) -> list[FilePart]:
    """Return the part of each file."""
    return [_part(opening, file) for file in opening.files]


def _part(opening: Opening, file: DataFile) -> FilePart:
    cache, wanted = opening.cache, opening.features
    # Errors show the bytes of a member that is to be something else.
    other = [name for name, one in (wanted or {}).items() if one.field != Field(dtypes.BYTES)]
    index = cache.get(file, "tar examples", partial(_indexed, file, cache), partial(_fits, file))
    starts, stops = np.split(index[:-1], 2)
    if index[-1]:
        try:
            _indexed(file, cache, int(stops[-1]) if len(stops) else 0, strict=True)
        except Damaged as error:
            text = f"{file.path}, record {len(starts)}: {error}{NOTHING_AFTER}"
            opening.bad.report(DataError(text), error.reason)

    def parsed(archive: memoryview) -> Row:
        def read(member: Member) -> memoryview:
            return archive[member.data : member.data + member.size]

        row, wrong, _ = _row(wanted, read, _parts_of_examples(_within(archive)))
        if wrong:
            raise ValueError(wrong)
        for name in other:
            if isinstance(content := row.get(name), memoryview):
                row[name] = bytes(content)
        return row

    return FilePart(file, parsed, opening.bad, starts, stops)


def _within(archive: memoryview) -> Iterator[Member]:
    """Yield the members of an example, whose headers were checked for the index."""
    byte = 0
    while byte < len(archive):
        data, size = byte + tarfile.BLOCKSIZE, _MOST_SIZE
        header = archive[byte:data].tobytes()
        if header[156:157] == b"0" and header[257:262] == b"ustar" and not header[345]:
            with suppress(ValueError):  # of a size that is not octal
                size = int(header[124:135], 8)
        after = data + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if after > len(archive):  # no plain header, or not the one that was checked
            yield from members(io.BytesIO(archive), byte, len(archive))
            return
        name = header[:100].partition(b"\0")[0].decode(errors="surrogateescape")
        yield Member(name, byte, data, size, after, True)
        byte = after


def _indexed(file: DataFile, cache: IndexCache, byte: int = 0, strict: bool = False) -> np.ndarray:
    """Return where examples begin, where they end, and whether the archive breaks off then."""
    progress, starts, stops = cache.progress_of(file), list[int](), list[int]()
    broken = 0
    with open_forward(file, byte) as stream:
        try:
            for group in _groups(members(stream, byte)):
                first, *others = group
                starts.append(first.member.byte)
                stops.append((others or [first])[-1].member.after)
                progress(stops[-1])
        except Damaged:
            if strict:
                raise
            broken = 1
    return np.array([*starts, *stops, broken], np.int64)


def _fits(file: DataFile, index: np.ndarray) -> bool:
    """Return whether headers still lie where the index of a file says, at some places.

    The stamp of a remote file names its content.
    """
    if is_remote(file.path):
        return True
    data, starts = mapped(file), index[: len(index) // 2]
    for i in some_of(len(starts)):
        header = data[int(starts[i]) :][: tarfile.BLOCKSIZE].tobytes()
        try:
            tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except _UNSOUND:
            return False
    return True
