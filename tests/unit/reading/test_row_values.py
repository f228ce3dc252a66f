"""A selector gives one value per row, or an error that names the row, column or function."""

import ml_dtypes
import numpy as np
import pytest

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading.chunk import BadRecords, Chunk, Origin
from headrace_server.reading.columns import column_from_rows
from headrace_server.reading.row_values import Rule, Values, as_int64

FIELDS = {
    "n": Field("int16"),
    "u": Field("uint64"),
    "h": Field("bfloat16"),
    "t": Field("bytes"),
    "v": Field("float32", (None, 2)),
    "words": Field("bytes", (None,)),
    "pair": Field("float32", (3,)),
}


def chunk_of(count):
    rows = {
        "n": list(range(count)),
        "u": [2**64 - 1 - i for i in range(count)],
        "h": [ml_dtypes.bfloat16(i / 2) for i in range(count)],
        "t": [b"t"] * count,
        "v": [np.zeros((i, 2), np.float32) for i in range(count)],
        "words": [[b"w"] * i for i in range(count)],
        "pair": [np.zeros(3, np.float32)] * count,
    }
    columns = {name: column_from_rows(rows[name], field) for name, field in FIELDS.items()}
    numbers = np.arange(count, dtype=np.int64)
    return Chunk(columns, numbers, Origin.single("a.npz", 40 + numbers))


def short(columns):
    return columns["n"][1:]


def raises(columns):
    raise KeyError("gone")


def refuses(columns):
    raise DataError("no row is good")


def uneven(columns):
    return [[0], [0, 1], [2]]


def values(what, kind="column", sequence=False):
    what = f"{__name__}:{what.__name__}" if callable(what) else what
    kind = "function" if isinstance(what, str) and ":" in what else kind
    return Values("bucket", "which_bucket", [kind, what], sequence)


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        (short, r"gave int16 of shape \[2\]; it must be one number per row, 3 in all"),
        (raises, r"raised KeyError: 'gone' \(.*test_row_values\.py:\d+\)"),
        (refuses, r"raised DataError: no row is good \(.*test_row_values\.py:\d+\)"),
        (uneven, r"gave a list, which is no array: setting an array element with a sequence"),
        ("pair", r"gave float32 of shape \[3, 3\]"),
    ],
)
def test_a_function_without_a_value_per_row_makes_the_whole_chunk_bad(what, fault):
    with pytest.raises(
        DataError, match=r"a.npz, record 40 and the 2 after it: bucket: which_"
    ) as e:
        values(what).of(chunk_of(3), BadRecords())
    assert e.match(fault)
    entered: list[str] = []
    skipping = BadRecords(skip=True, enters=entered.append)
    assert values(what).of(chunk_of(3), skipping) is None
    assert entered[1::2] == [""] * len(entered[::2])
    assert skipping.counts == {"value_failed": 3}


def test_rows_that_break_the_rule_are_named_and_left_out():
    below_two = Rule("it must be below 2", "large", most=1)
    with pytest.raises(
        DataError, match=r"a.npz, record 42: bucket: which_bucket \(column 'n'\) is"
    ):
        values("n").sound(chunk_of(4), BadRecords(), below_two)
    skipping = BadRecords(skip=True)
    chunk, kept = values("n").sound(chunk_of(4), skipping, below_two)
    assert chunk.ordinals.tolist() == kept.tolist() == [0, 1]
    assert skipping.counts == {"large": 2}
    chunk, kept = values(raises).sound(chunk_of(4), skipping, below_two)
    assert len(chunk) == len(kept) == 0


def test_whole_numbers_of_any_dtype_become_int64_within_its_limits():
    lowest, highest = -(2**63), 2**63 - 1
    assert as_int64(np.array([0, 2**63, 2**64 - 1], np.uint64)).tolist() == [0, highest, highest]
    assert as_int64(np.array([lowest, highest])).tolist() == [lowest, highest]
    big = np.array([-1e300, -3.0, 7.0, 2.0**63, 1e300])
    assert as_int64(big).tolist() == [lowest, -3, 7, highest, highest]
    assert as_int64(np.array([True, False])).tolist() == [1, 0]
    assert as_int64(np.array([-128, 127], np.int8)).tolist() == [-128, 127]
    assert as_int64(np.float32([2.0**62, 3])).tolist() == [2**62, 3]
    assert as_int64(np.float16([60000, -5])).tolist() == [60000, -5]
