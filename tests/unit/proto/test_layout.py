"""Arrays in a block: every dtype and rank goes in and comes out, and false layouts are found before
use.
"""

from math import prod

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from headrace_proto import limits
from headrace_proto.dtypes import BYTES, DTYPES, numpy_dtype
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import (
    ALIGNMENT,
    ColumnPlace,
    aligned_bytes,
    arrange,
    array_at,
    check_place,
    strings_at,
)
from headrace_server.making.segment_block import packed_strings

from .generated import steady

NUMERIC = sorted(DTYPES - {BYTES})
shapes = st.lists(st.integers(0, 3), max_size=8).map(tuple)
texts = st.binary(max_size=6) | st.sampled_from([b"", b"\0", b"a\0", b"\0\0b\0", b"\xff\0"])


@st.composite
def columns(draw):
    """A dtype, and an array of it with every bit drawn."""
    dtype = draw(st.sampled_from([*NUMERIC, BYTES]))
    shape = draw(shapes)
    count = prod(shape)
    if dtype == BYTES:
        return dtype, shape, draw(st.lists(texts, min_size=count, max_size=count))
    seed = draw(st.integers(0, 2**16))
    size = count * numpy_dtype(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    return dtype, shape, raw.tobytes()


@steady
@given(st.lists(columns(), max_size=5))
@example([])
@example([("bool", (0,), b"")])
def test_arrays_written_to_a_block_are_read_from_it(arrays):
    slots, nbytes = arrange([(d, s, sum(map(len, v)) if d == BYTES else 0) for d, s, v in arrays])
    block = aligned_bytes(nbytes)
    end = 0
    for slot, (dtype, shape, value) in zip(slots, arrays, strict=True):
        assert slot.offset % ALIGNMENT == 0
        assert slot.offset >= end
        end = slot.offset + slot.nbytes
        check_place(slot, nbytes)
        if dtype == BYTES:
            block[slot.offset : slot.offset + slot.nbytes].data[:] = packed_strings(value)
        else:
            array_at(block, slot)[...] = np.frombuffer(value, numpy_dtype(dtype)).reshape(shape)
    assert end <= nbytes < end + ALIGNMENT
    for slot, (dtype, shape, value) in zip(slots, arrays, strict=True):
        if dtype == BYTES:
            got = strings_at(block, slot)
            assert got.dtype == object
            assert got.shape == shape
            assert got.reshape(-1).tolist() == value
        else:
            array = array_at(block, slot)
            assert array.shape == shape
            assert array.tobytes() == value
            assert array.ctypes.data % ALIGNMENT == 0 or not array.size


BLOCK = 256


odd_ints = st.sampled_from([-(2**63), -1, 0, 1, 2, 2**31, 2**32, 2**60, 2**61, 2**62, 2**63 - 1])
odd_dims = odd_ints | st.integers(-1, 5) | st.sampled_from([None, 2.0, "", True, 2**63, 2**70])


@steady
@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(odd_dims, max_size=limits.MAX_RANK + 2).map(tuple),
    st.sampled_from([0, 64, 128, 192, 256]) | odd_dims,
    st.integers(0, 256) | odd_dims,
    st.binary(min_size=BLOCK, max_size=BLOCK),
)
def test_slots_that_pass_the_check_can_be_read(dtype, shape, offset, nbytes, content):
    fitting = prod(d for d in shape if type(d) is int) if dtype != BYTES else 128
    item = 1 if dtype == BYTES else numpy_dtype(dtype).itemsize
    for size in (nbytes, fitting * item):
        slot = ColumnPlace(dtype, shape, offset, size)
        try:
            check_place(slot, BLOCK)
            block = aligned_bytes(BLOCK)
            block[:] = np.frombuffer(content, np.uint8)
            array = strings_at(block, slot) if dtype == BYTES else array_at(block, slot)
        except ProtocolError:
            continue
        assert array.shape == shape
