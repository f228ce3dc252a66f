"""Frames of one file read forward, decompressed as they are wanted.

    file ─► 256 kB ─► inflate, member after member ─► at most 1 MB ─► frames

Memory holds one record and one block, never the whole file.  A file that ends or breaks in the
middle gives all earlier records, then the damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import BinaryIO, Final, Literal, NamedTuple

from headrace_proto.errors import DataError
from headrace_server.files.manifest import DataFile, open_stream

from .record_streams import Damaged
from .tfrecord_frames import FOOT, HEAD, MAX_RECORD_BYTES, length_is_sound

Compression = Literal["gzip", "zlib"] | None

_WINDOW_BITS: Final = {"gzip": 31, "zlib": 15}
_READ = 256 * 1024
_INFLATE = 1024 * 1024
_LENGTH = struct.Struct("<Q")


def detect(file: DataFile) -> Compression:
    """Return the compression of a file, by its first bytes, or by its name where it has too few."""
    with open_stream(file) as stream:
        head = stream.read(HEAD)
    if len(head) == HEAD and length_is_sound(head):
        return None
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if len(head) >= 2 and head[0] & 0x8F == 8 and int.from_bytes(head[:2]) % 31 == 0:
        return "zlib"
    name = file.path.lower()
    if name.endswith((".gz", ".gzip")):
        return "gzip"
    return "zlib" if name.endswith((".zlib", ".zz")) else None


class Position(NamedTuple):
    """The number of a record, and its byte in the decompressed file."""

    record: int = 0
    byte: int = 0


def frames(
    file: DataFile, compression: Compression, verify: bool, place: Position
) -> Generator[bytearray]:
    """Yield the frames of a file from a place on.  Damaged where it is damaged or cut off."""
    with open_stream(file) as stream:
        blocks = _inflated(file, stream, compression)
        pending = bytearray()  # from byte ``base`` of the content on; a frame begins at ``begin``
        base, begin = 0, place.byte

        def has(size: int) -> bool:
            """Return whether so many bytes from ``begin`` on are pending, after reads as needed."""
            nonlocal base, begin
            while len(pending) < begin + size:
                passed = min(begin, len(pending))
                del pending[:passed]
                base, begin = base + passed, begin - passed
                block = next(blocks, b"")
                if not block:
                    return False
                pending.extend(block)
            return True

        if not has(0):
            raise DataError(
                f"{file.path} ends before byte {place.byte} decompressed, where record "
                f"{place.record} is to be read: the position is of another file"
            )
        while has(1):
            whole = has(HEAD)
            if whole:
                length: int = _LENGTH.unpack_from(pending, begin)[0]
                head = bytes(pending[begin : begin + HEAD])
                if length > MAX_RECORD_BYTES or (verify and not length_is_sound(head)):
                    raise Damaged("the length of the record, or its checksum, is wrong")
                size = HEAD + length + FOOT
                whole = has(size)
            if not whole:
                at, end = base + begin, base + len(pending)
                text = (
                    f"truncated at byte {end}: the frame that begins at byte {at} is not complete"
                )
                raise Damaged(text, "truncated_file")
            begin += size
            yield pending[begin - size : begin]


def _inflated(file: DataFile, stream: BinaryIO, compression: Compression) -> Iterator[bytes]:
    """Yield the content of a file by blocks.  Damaged where it is damaged or cut off."""
    raw, inflater = b"", None
    while True:
        raw = raw or stream.read(_READ)
        at_end = not raw
        if compression == "gzip" and inflater is None:
            raw = raw.lstrip(b"\0")  # zeros may fill up the last block of a tape
        if inflater is None and not raw:
            if at_end:
                return
            continue
        if compression is None:
            yield raw
            raw = b""
            continue
        inflater = inflater or zlib.decompressobj(_WINDOW_BITS[compression])
        try:
            block = inflater.decompress(raw, _INFLATE)  # at the end: the rest in the inflater
        except zlib.error as error:
            raise Damaged(f"the {compression} data is damaged ({error})") from None
        if inflater.eof:  # of this member; another may follow
            raw, inflater = inflater.unused_data, None
        else:
            raw = inflater.unconsumed_tail
        if block:
            yield block
        elif at_end and inflater is not None:
            text = f"truncated at byte {file.size}: the {compression} data is not complete"
            raise Damaged(text, "truncated_file")
