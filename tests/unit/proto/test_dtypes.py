"""Which element types may cross the wire, and under which name."""

import sys

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


def test_the_error_of_a_dtype_of_ml_dtypes_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr("headrace_proto.dtypes.NUMPY_OF", {})
    with pytest.raises(TypeError, match="pip install ml_dtypes"):
        numpy_dtype("bfloat16")
