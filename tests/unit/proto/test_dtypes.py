"""Which element types may cross the wire, and under which name."""

import sys

import ml_dtypes
import numpy as np
import pytest

from headrace_proto.dtypes import BYTES, DTYPES, canonical, name_of, numpy_dtype

NUMERIC = sorted(DTYPES - {BYTES})


@pytest.mark.parametrize("name", NUMERIC)
def test_a_name_and_its_numpy_dtype_stand_for_each_other(name):
    dtype = numpy_dtype(name)
    assert name_of(dtype) == name
    assert canonical(name) == canonical(dtype) == canonical(dtype.type) == name
    assert dtype.isnative
    assert not dtype.hasobject


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *(
            ("string", BYTES),
            ("str", BYTES),
            ("bytes", BYTES),
            (bytes, BYTES),
            (str, BYTES),
            (object, BYTES),
        ),
        *((np.dtype("S3"), BYTES), (np.dtype("U3"), BYTES), (np.bytes_, BYTES)),
        *(("float", "float32"), ("double", "float64"), ("half", "float16")),
        *((float, "float64"), (int, "int64"), (bool, "bool"), (complex, "complex128")),
        *((np.float32, "float32"), (np.longlong, "int64"), (ml_dtypes.bfloat16, "bfloat16")),
    ],
)
def test_a_dtype_may_be_given_in_the_ways_people_write_it(given, name):
    assert canonical(given) == name


@pytest.mark.parametrize(
    "given",
    [
        *("datetime64[s]", "float128", "f4", "<f4", "", "object", "float8_e4m3", None, 3, [], ...),
        *(np.dtype("M8[s]"), np.dtype("m8[ns]"), np.dtype("V8"), np.dtype([("a", "i4")])),
        *(np.dtype(">f4"), np.dtype(">i8"), np.longdouble, ml_dtypes.int4, {"x": "i4"}),
    ],
    ids=repr,
)
def test_a_dtype_that_may_not_travel_is_refused_with_those_that_may(given):
    with pytest.raises(TypeError, match="is not one of bfloat16, bool, bytes, complex128"):
        canonical(given)


def test_the_error_of_a_dtype_of_ml_dtypes_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr("headrace_proto.dtypes.NUMPY_OF", {})
    with pytest.raises(TypeError, match="pip install ml_dtypes"):
        numpy_dtype("bfloat16")
