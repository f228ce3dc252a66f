"""A batch is a mapping from names to arrays, and a description that lies is found before it is
believed."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch, KnownSlots
from headrace.framework import NumpyFramework
from headrace_proto.dtypes import BYTES, DTYPES, numpy_dtype
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import aligned_bytes, arrange, array_at, slots_of
from headrace_proto.messages import FROM_SERVER, Give, Given
from headrace_proto.schema import Field

NUMBERS = sorted(DTYPES - {BYTES})


def put_strings(block, slot, values):
    ends = np.cumsum([0, *map(len, values)])
    data = np.concatenate(
        [ends.astype("<i8").view(np.uint8), np.frombuffer(b"".join(values), "u1")]
    )
    block[slot.offset : slot.offset + len(data)] = data


def batch_of(columns, framework=None, bucket=-1):
    """A batch of arrays and lists of bytes, described as the server does, through the codec."""
    wanted, schema = [], {}
    for name, value in columns.items():
        if isinstance(value, list):
            dtype, shape, extra = BYTES, (len(value),), sum(map(len, value))
        else:
            dtype, shape, extra = value.dtype.name, value.shape, 0
        schema[name] = Field(dtype, (None, *shape[1:]))
        wanted.append((dtype, shape, extra))
    slots, nbytes = arrange(wanted)
    block = aligned_bytes(nbytes)
    for slot, value in zip(slots, columns.values(), strict=True):
        if slot.dtype == BYTES:
            put_strings(block, slot, value)
        else:
            array_at(block, slot)[...] = value
    described = [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
    given = Given(4, 77, 2, 5, 0, 5, 0, 3, nbytes, described, bucket=bucket)
    message = FROM_SERVER.decode(FROM_SERVER.encode(Give(1, (given,))))
    (given,) = message.items
    return Batch(given, slots_of(given, schema), block, framework or NumpyFramework())


# What is in it


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_dtype_arrives_as_it_was(dtype):
    value = np.array([[0, 1, 2], [3, 4, 5]]).astype(numpy_dtype(dtype))
    got = batch_of({"before": np.zeros(3, np.int8), "x": value})["x"]
    assert got.dtype == value.dtype and got.shape == (2, 3)
    assert got.tobytes() == value.tobytes()
    assert got.flags.writeable and got.flags.c_contiguous and got.ctypes.data % 64 == 0


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "bool", "complex128"]),
)
def test_every_shape_arrives_as_it_was(shape, dtype):
    value = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    got = batch_of({"x": value, "y": value})["y"]
    assert got.shape == tuple(shape) and (got == value).all()


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_strings_are_arrays_of_bytes(values):
    got = batch_of({"x": np.zeros(1, np.int64), "s": values, "t": values})["t"]
    assert got.dtype == object and got.shape == (len(values),)
    assert got.tolist() == values and all(type(v) is bytes for v in got)


def test_a_batch_has_its_partition_number_and_token_and_a_description():
    batch = batch_of({"x": np.zeros(3)}, bucket=2)
    assert (batch.token, batch.partition, batch.number, batch.rows) == (77, 2, 5, 3)
    assert batch.bucket == 2


def test_a_batch_is_a_mapping_in_the_order_of_the_schema():
    batch = batch_of({"b": np.zeros((3, 2)), "a": np.ones(3, np.int8), "s": [b"x"]})
    assert list(batch) == ["b", "a", "s"] == list(batch.keys()) and len(batch) == 3
    assert "a" in batch and "z" not in batch and None not in batch
    assert batch.get("z") is None and batch.get("a") is batch["a"]
    assert dict(batch).keys() == {"a", "b", "s"}
    assert {name: value.shape for name, value in batch.items()} == {
        "b": (3, 2),
        "a": (3,),
        "s": (1,),
    }
    assert repr(batch) == "<Batch 2/5 of 3 rows: b: float64[3, 2], a: int8[3], s: bytes[1]>"
    with pytest.raises(TypeError):
        batch["a"] = np.zeros(3)


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    batch = batch_of({"audio": np.zeros(3), "label": np.zeros(3)})
    for look in (batch.__getitem__, batch.array):
        with pytest.raises(
            KeyError, match=r"'adio' is not a column.*\['audio', 'label'\]; did.*'audio'"
        ):
            look("adio")


def test_a_column_is_converted_once_and_only_when_it_is_asked_for():
    class Framework:
        name = "counting"

        def __init__(self):
            self.calls = []

        def numbers(self, array, dtype, aligned=False):
            self.calls.append((dtype, array.shape))
            return "tensor"

        def strings(self, array):
            self.calls.append((BYTES, array.shape))
            return "strings"

    framework = Framework()
    batch = batch_of({"x": np.zeros(3, np.float16), "s": [b"a", b"b"], "y": np.zeros(1)}, framework)
    assert framework.calls == []
    assert batch["x"] == batch["x"] == "tensor" and batch["s"] == batch["s"] == "strings"
    assert framework.calls == [("float16", (3,)), (BYTES, (2,))]
    assert type(batch.array("x")) is np.ndarray  # whatever the framework


def test_arrays_share_the_memory_of_the_batch_and_keep_it():
    batch = batch_of({"x": np.arange(3), "y": np.arange(3)})
    x = batch["x"]
    x[1] = 50
    assert batch["x"].tolist() == [0, 50, 2] == batch.array("x").tolist()
    del batch
    gc.collect()
    assert x.tolist() == [0, 50, 2]


# What is refused

SCHEMA = {"x": Field("int64", (None, 2)), "s": Field(BYTES, (None,))}
GOOD = [[0, 48, [3, 2]], [64, 40, [3]]]


def described(x=None, s=None, columns=None, nbytes=128):
    if columns is None:
        columns = [GOOD[0] if x is None else x, GOOD[1] if s is None else s]
    return Given(1, 1, 0, 0, 0, 0, 0, 3, nbytes, columns)


def test_a_right_description_is_believed():
    slots = slots_of(described(), SCHEMA)
    assert [(s.offset, s.nbytes, s.shape) for s in slots.values()] == [
        (0, 48, (3, 2)),
        (64, 40, (3,)),
    ]


def test_columns_that_were_right_are_right_again_in_a_block_of_that_size_only():
    known = KnownSlots()
    first = known.of(described(columns=GOOD), SCHEMA)
    assert known.of(described(columns=GOOD), SCHEMA) is first
    with pytest.raises(ProtocolError, match="does not lie in its block of 64 bytes"):
        known.of(described(columns=GOOD, nbytes=64), SCHEMA)
    equal = [[0, 48.0, [3, 2]], GOOD[1]]
    assert equal == GOOD
    with pytest.raises(ProtocolError, match=r"are not \[offset, nbytes"):
        known.of(described(columns=equal), SCHEMA)


@pytest.mark.parametrize("columns", [None, {}, "xs", [], [GOOD[0]], [*GOOD, GOOD[0]]])
def test_a_batch_has_the_columns_of_its_feed(columns):
    given = Given(1, 1, 0, 0, 0, 0, 0, 3, 128, columns)
    with pytest.raises(ProtocolError, match="does not have the 2 columns of its feed"):
        slots_of(given, SCHEMA)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (None, "column 'x' of a batch is described wrongly"),
        (7, "column 'x'"),
        ([], "column 'x'"),
        ([0, 48], "column 'x'"),
        ([0, 48, [3, 2], 0], "column 'x'"),
        ([0, 48, 6], "column 'x'"),
        ([0, 48, None], "column 'x'"),
        ([0.0, 48, [3, 2]], "are not .offset, nbytes"),
        ([0, 48.0, [3, 2]], "are not .offset, nbytes"),
        ([0, 48, [3.0, 2]], "are not .offset, nbytes"),
        (["0", 48, [3, 2]], "are not .offset, nbytes"),
        ([0, 48, ["3", 2]], "are not .offset, nbytes"),
        ([False, 48, [3, 2]], "are not .offset, nbytes"),
        ([0, 48, [-3, -2]], "impossible shape"),
        ([0, 48, [3, 2] + [1] * 31], "impossible shape"),
        ([1, 48, [3, 2]], "does not lie in its block of 128 bytes"),
        ([-64, 48, [3, 2]], "does not lie in its block"),
        ([128, 48, [3, 2]], "does not lie in its block"),
        ([64, 80, [5, 2]], "does not lie in its block"),
        ([0, -48, [3, 2]], "does not lie in its block"),
        ([0, 40, [3, 2]], r"40 bytes do not hold int64 of shape \[3, 2\]"),
        ([0, 64, [3, 2]], "64 bytes do not hold"),
        ([0, 48, [2**62, 2]], "48 bytes do not hold"),
        ([0, 48, [2, 3]], r"its shape \[2, 3\] is not one of int64\[\?, 2\]"),
        ([0, 48, [6]], "is not one of int64"),
    ],
)
def test_a_description_that_lies_is_refused_by_its_column(column, text):
    with pytest.raises(ProtocolError, match="column 'x' of a batch is described wrongly") as caught:
        slots_of(described(columns=[column, GOOD[1]]), SCHEMA)
    assert caught.match(text)


def test_strings_need_room_for_their_offsets():
    with pytest.raises(ProtocolError, match=r"column 's'.* 24 bytes do not hold bytes of shape"):
        slots_of(described(s=[64, 24, [3]]), SCHEMA)


@pytest.mark.parametrize(
    "offsets", [[1, 2, 3, 4], [0, 3, 2, 4], [0, 0, 0, 9], [0, -1, 0, 0], [0, 0, 0, -1]]
)
def test_offsets_of_strings_that_lie_are_refused_when_they_are_read(offsets):
    slots = slots_of(described(), SCHEMA)
    block = aligned_bytes(128)
    block[64:96] = np.array(offsets, "<i8").view(np.uint8)
    batch = Batch(described(), slots, block, NumpyFramework())
    with pytest.raises(ProtocolError, match="the offsets of an array of strings do not fit"):
        batch["s"]


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats()
        | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=20,
    )
)
def test_no_description_is_worse_than_a_protocol_error(column):
    try:
        slots = slots_of(described(x=column), SCHEMA) if column is not None else {}
    except ProtocolError:
        return
    if slots:
        array_at(aligned_bytes(128), slots["x"])
