"""Frames of one file read forward."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import NamedTuple

from headrace_server.files.manifest import DataFile, open_stream

from .forward_files import Compression, Damaged, compression_of, open_forward
from .tfrecord_frames import FOOT, HEAD, MAX_RECORD_BYTES, length_is_sound

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
    return compression_of(file.path)


class FramePlace(NamedTuple):
    """The number of a record, and its byte in the decompressed file."""

    record: int = 0
    byte: int = 0


def frames(
    file: DataFile, compression: Compression, verify: bool, place: FramePlace
) -> Generator[bytes]:
    """Yield the frames of a file from a place on.  Damaged where it is damaged or cut off."""
    at = place.byte
    with open_forward(file, at, compression) as stream:
        while frame := stream.read(HEAD):
            size = HEAD
            if len(frame) == HEAD:
                length: int = _LENGTH.unpack_from(frame)[0]
                if length > MAX_RECORD_BYTES or (verify and not length_is_sound(frame)):
                    raise Damaged("the length of the record, or its checksum, is wrong")
                size = HEAD + length + FOOT
                frame += stream.read(length + FOOT)
            if len(frame) < size:
                text = (
                    f"truncated at byte {at + len(frame)}: the frame that begins at byte {at} is "
                    "not complete"
                )
                raise Damaged(text, "truncated_file")
            at += size
            yield frame
