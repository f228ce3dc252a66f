"""Files that are read forward from a byte on, and decompressed as they are wanted.

    file ─► 16 kB ─► inflate, member after member ─► at most 16 MB ─► buffer ─► lines, records

Memory holds a block and the record that is read, never the whole file.  A file that breaks off
gives all records before that, then Damaged; one that is damaged those before the 16 kB that hold
the damage.  They are the same wherever reading begins: the steps of inflating do not depend on what
is read.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Literal, cast

from headrace_proto.errors import DataError

from ..files.manifest import DataFile
from ..files.ranges import open_stream

Compression = Literal["gzip", "zlib"] | None

_WINDOW_BITS: Final = {"gzip": 31, "zlib": 15}
#: Bytes inflated at once: so many become at most 16 MB, and are lost where one is damaged.
_PIECE: Final = 16 * 1024
#: Bytes of content read at once.
_BUFFER: Final = 1024 * 1024
#: Maximum bytes of a line: a file without line ends must not fill the memory.
MOST_LINE: Final = 1 << 30
MARK: Final = b"\xef\xbb\xbf"  # the byte order mark of UTF-8, which some editors add

#: Ends the error where the rest of a stream is lost.
NOTHING_AFTER: Final = "; nothing after that can be read"


class Damaged(Exception):
    """No record can be read after this place; ``reason`` is its short name."""

    def __init__(self, text: str, reason: str = "corrupt_file") -> None:
        super().__init__(text)
        self.reason = reason


def compression_of(path: str) -> Compression:
    """Return the compression that the name of a file shows."""
    name = path.lower()
    if name.endswith((".gz", ".gzip", ".tgz")):
        return "gzip"
    return "zlib" if name.endswith((".zlib", ".zz")) else None


@contextmanager
def open_forward(
    file: DataFile, byte: int = 0, compression: Compression | Literal["named"] = "named"
) -> Iterator[BinaryIO]:
    """Open the content from a byte on.  A compressed file is decompressed again up to it."""
    if compression == "named":
        compression = compression_of(file.path)
    with open_stream(file) as stream:
        size = file.size
        if compression is not None:
            raw = _Inflated(file, stream, compression)
            stream = cast(BinaryIO, io.BufferedReader(raw, _BUFFER))
            size = stream.seek(byte)
        if size < byte:
            raise DataError(
                f"{file.path} ends before byte {byte} of its content, where reading is to go on: "
                "the position is of another file"
            )
        stream.seek(byte)
        yield stream


class Lines(Iterator[bytes]):
    """The lines of a file from ``byte`` on, which is then the end of the last line taken.

    A byte order mark is left out.
    """

    def __init__(self, stream: BinaryIO, byte: int = 0) -> None:
        self._readline, self.byte = stream.readline, byte

    def __next__(self) -> bytes:
        line = self._readline(MOST_LINE + 1)
        size, at = len(line), self.byte
        if not size:
            raise StopIteration
        if size > MOST_LINE:
            raise Damaged(f"a line at byte {at} has more than {MOST_LINE} bytes")
        self.byte = at + size
        return line if at else line.removeprefix(MARK)


class _Inflated(io.RawIOBase):
    """The content of a compressed file, which is read and sought forward."""

    def __init__(self, file: DataFile, stream: BinaryIO, compression: str) -> None:
        self._file, self._stream, self._compression = file, stream, compression
        self._raw, self._at = b"", 0
        self._block = memoryview(b"")  # inflated and not yet read
        self._inflater: zlib._Decompress | None = None  # of a member; another one may follow

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        """Read up to a byte; return the byte that was reached."""
        if whence == io.SEEK_CUR:
            to += self._at
        while self._at < to and self.read(min(to - self._at, _BUFFER)):
            pass
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; Damaged where the file is damaged or cut off."""
        self._block = self._block or memoryview(self._inflated())
        size = min(len(buffer), len(self._block))
        buffer[:size], self._block = self._block[:size], self._block[size:]
        self._at += size
        return size

    def _inflated(self) -> bytes:
        """Return the next block, empty at the end."""
        block = b""
        while not block:
            piece = self._raw or self._stream.read(_PIECE)
            at_end, self._raw = not piece, b""
            if self._inflater is None:
                if at_end:
                    return b""
                if self._compression == "gzip":
                    piece = piece.lstrip(b"\0")  # zeros may fill up the last block of a tape
                    if not piece:
                        continue
                self._inflater = zlib.decompressobj(_WINDOW_BITS[self._compression])
            try:
                block = self._inflater.decompress(piece)
            except zlib.error as error:
                raise Damaged(f"the {self._compression} data is damaged ({error})") from None
            if self._inflater.eof:
                self._raw, self._inflater = self._inflater.unused_data, None
            elif at_end and not block:
                text = f"truncated at byte {self._file.size}: the {self._compression} data is not"
                raise Damaged(f"{text} complete", "truncated_file")
        return block
