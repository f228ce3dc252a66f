"""The keys of segments: which segment, of how many, of which example.

00001_of_00003:patient-12   after the last one   STOP:patient-12   of an empty row   b""
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import unpack, unpack_from
from typing import TYPE_CHECKING

import numpy as np

from headrace_proto.layout import first_strings

if TYPE_CHECKING:
    from headrace_proto.segment_layout import ColumnPlace


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


def keys_later(
    rows: int, block: memoryview, places: Mapping[str, ColumnPlace], upto: int
) -> Callable[[], list[bytes]]:
    """Return a function that makes the first ``upto`` keys of a batch, even when its block is gone.

    ProtocolError where the server sent invalid strings.
    """
    upto = min(upto, rows)
    offset, nbytes, *_ = places["@key"]
    (end,) = unpack_from("=q", block, offset + 8 * upto)
    end = offset + min(8 * (rows + 1) + max(0, end), nbytes)
    sequence, count = places["@sequence"].offset, places["@sequence_count"].offset
    return partial(
        _first_keys,
        upto,
        rows,
        nbytes,
        bytes(block[offset:end]),
        bytes(block[sequence : sequence + 4 * upto]),
        bytes(block[count : count + 4 * upto]),
    )


def _first_keys(
    upto: int, rows: int, nbytes: int, keys: bytes, sequence: bytes, count: bytes
) -> list[bytes]:
    """Make the keys of the first rows from copies of the beginnings of their columns."""
    originals = first_strings(np.frombuffer(keys, np.uint8), 0, nbytes, rows, upto)
    numbers = f"={upto}i"
    return segment_keys(originals, unpack(numbers, sequence), unpack(numbers, count))
