"""Columns as Arrow arrays are read back as they were."""

import numpy as np
import pyarrow as pa
import pytest

from headrace_proto.schema import Field
from headrace_server.reading.columns import column_from_rows, field_of, row_of
from headrace_server.reading.conversion import arrow_array, arrow_schema
from headrace_server.reading.sources.arrow.columns import decoded_column, stored_field

FIELDS = {
    "scalar": ([1, 2, 3], Field("int16")),
    "bool": ([True, False, True], Field("bool")),
    "half": ([1.0, 2.0, float("nan")], Field("float16")),
    "unsigned": ([0, 2**64 - 1, 5], Field("uint64")),
    "array": ([np.full((2, 3), i) for i in range(3)], Field("float32", (2, 3))),
    "bools": ([[True, False]] * 3, Field("bool", (2,))),
    "text": ([b"", b"b\x00", b"ccc"], Field("bytes")),
    "texts": ([[b"a", b""]] * 3, Field("bytes", (2,))),
    "ragged": ([[1.5], [], [2.5, 3.5]], Field("float64", (None,))),
    "ragged bools": ([[True], [], [False, True]], Field("bool", (None,))),
    "inner": ([np.ones((i, 2), int) for i in range(3)], Field("int32", (None, 2))),
    "nested": ([np.ones((i, 3 - i), int) for i in range(3)], Field("int8", (None, None))),
    "between": ([np.ones((i, 2, 3 - i), int) for i in range(3)], Field("int8", (None, 2, None))),
    "after": ([np.ones((2, i), int) for i in range(3)], Field("int8", (2, None))),
    "ragged texts": ([[b"a"], [], [b"bb", b"c"]], Field("bytes", (None,))),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_column_comes_back_with_its_field_and_its_values(name):
    rows, field = FIELDS[name]
    column = column_from_rows(rows, field)
    array = arrow_array(name, field, column)
    array.validate(full=True)
    assert array.type == arrow_schema({name: field}).field(name).type
    assert stored_field(array.type) == field
    back = decoded_column(array).read(0, slice(0, 3)).column
    assert field_of(back).dtype == field.dtype
    for i in range(3):
        found, wanted = np.asarray(row_of(back, i)), np.asarray(row_of(column, i))
        assert found.size == wanted.size and found.ndim == wanted.ndim
        if wanted.size:  # files do not keep the inner dimensions of what has no elements
            np.testing.assert_array_equal(found, wanted)


def test_no_rows_make_an_array_without_rows():
    for rows, field in FIELDS.values():
        array = arrow_array("x", field, column_from_rows(rows[:0], field))
        assert isinstance(array, pa.Array) and len(array) == 0
