"""CSV: rows, groups of rows, quotes, and exact positions."""

import csv
import io
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.source import StreamSource
from tests.examples import some
from tests.unit.readers import all_of, opened, write

TEXT = 'id,n,x,note\na,1,0.5,plain\nb,2,1,"two\nlines, ""quoted"""\n\nc,-3,nan,\n'


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_types_are_those_of_the_first_rows(tmp_path, name):
    reader = opened("csv", write(tmp_path / name, TEXT.replace("nan", "4e3")))
    assert isinstance(reader, StreamSource)
    assert reader.fields == {
        "id": Field("bytes"),
        "n": Field("int64"),
        "x": Field("float64"),
        "note": Field("bytes"),
    }
    assert all_of(reader) == [
        {"id": b"a", "n": 1, "x": 0.5, "note": b"plain"},
        {"id": b"b", "n": 2, "x": 1.0, "note": b'two\nlines, "quoted"'},
        {"id": b"c", "n": -3, "x": 4000.0, "note": b""},
    ]


CELLS = st.text("a,\"\n\r' é0", max_size=5)


@settings(max_examples=some(80))
@given(
    st.lists(st.tuples(st.integers(0, 2), CELLS, st.integers(-9, 9)), max_size=12),
    st.sampled_from(["\n", "\r\n"]),
)
def test_a_written_file_is_read_from_any_position(rows, newline):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=newline, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["k", "s", "n"])
    writer.writerows(rows)
    path = write(f"memory://{uuid.uuid4().hex}/a.csv", text.getvalue())
    features = {
        n: Feature("scalar", t) for n, t in (("k", "int64"), ("s", "bytes"), ("n", "int64"))
    }
    reader = opened("csv", path, features=features)
    assert all_of(reader) == [{"k": k, "s": s.encode(), "n": n} for k, s, n in rows]


def test_an_empty_cell_takes_the_default(tmp_path):
    features = {
        "n": Feature("scalar", "int64", (), -1, True),
        "b": Feature("scalar", "bool", (), True, True),
        "s": Feature("scalar", "bytes", (), b"unused", True),
    }
    path = write(tmp_path / "a", "n,b,s\n,,\n1,False,x\n")
    assert all_of(opened("csv", path, features=features)) == [
        {"n": -1, "b": True, "s": b""},
        {"n": 1, "b": False, "s": b"x"},
    ]


def test_numbers_too_long_for_int64_stay_text_and_bytes_stay_bytes(tmp_path):
    path = write(tmp_path / "a", b"\xef\xbb\xbfaccount,raw\n12345678901234567890,\xff\xfe\n")
    assert all_of(opened("csv", path)) == [{"account": b"12345678901234567890", "raw": b"\xff\xfe"}]
