"""The keys of segments: which segment, of how many, of which example.

00001_of_00003:patient-12   after the last one   STOP:patient-12   of an empty row   b""
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import unpack

import numpy as np

from headrace_proto.layout import first_strings

__all__ = ["first_keys", "segment_keys"]


def segment_keys(
    originals: Sequence[bytes], numbers: Sequence[int], counts: Sequence[int], ahead: int = 0
) -> list[bytes]:
    return [
        b"%05d_of_%05d:%s" % (n + ahead, count, key)
        if n + ahead < count
        else b"STOP:" + key
        if count
        else b""
        for n, count, key in zip(numbers, counts, originals, strict=True)
    ]


def first_keys(
    upto: int, rows: int, nbytes: int, keys: bytes, sequence: bytes, count: bytes
) -> list[bytes]:
    """Keys of the first rows, from copies of what their columns begin with."""
    originals = first_strings(np.frombuffer(keys, np.uint8), 0, nbytes, rows, upto)
    numbers = f"={upto}i"
    return segment_keys(originals, unpack(numbers, sequence), unpack(numbers, count))
