"""CSV: rows, groups of rows, quotes, and exact positions."""

from __future__ import annotations

import csv
import gzip
import io
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.source import StreamSource
from tests.examples import some
from tests.unit.readers import all_of, opened, write

TEXT = 'id,n,x,note\na,1,0.5,plain\nb,2,1,"two\nlines, ""quoted"""\n\nc,-3,nan,\n'


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_types_are_those_of_the_first_rows(tmp_path: Path, name: str) -> None:
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
def test_a_written_file_is_read_from_any_position(
    rows: list[tuple[int, str, int]], newline: str
) -> None:
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


def test_a_bad_row_is_named_or_skipped(tmp_path: Path) -> None:
    features = {"n": Feature("scalar", "int8"), "s": Feature("scalar", "bytes")}
    path = write(tmp_path / "a.csv", "n,s\n1,x\n2,y,z\n3,z\n")
    text = f"{path}, record 1, byte 8: row 2 has 3 cells, and there are 2 columns"
    with pytest.raises(DataError, match=text):
        opened("csv", path, features=features).read(0, b"", 9)
    bad = BadRecords(skip=True)
    reader = opened("csv", path, features=features, bad=bad)
    chunk, end = reader.read(0, b"", 9)
    assert end is None and chunk.ordinals.tolist() == [0, 2]
    assert bad.counts == {"corrupt_record": 1}
    assert all_of(reader) == [{"n": 1, "s": b"x"}, {"n": 3, "s": b"z"}]


def test_an_empty_cell_takes_the_default(tmp_path: Path) -> None:
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


def test_numbers_too_long_for_int64_stay_text_and_bytes_stay_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"\xef\xbb\xbfaccount,raw\n12345678901234567890,\xff\xfe\n")
    assert all_of(opened("csv", path)) == [{"account": b"12345678901234567890", "raw": b"\xff\xfe"}]


def test_a_header_that_does_not_serve_is_named(tmp_path: Path) -> None:
    twice = write(tmp_path / "twice", "n,n\n1,2\n")
    good = write(tmp_path / "good", "n\n1\n")
    with pytest.raises(DataError, match=r"twice: two columns are named 'n'; rename one$"):
        opened("csv", twice)
    features = {"n": Feature("scalar", "int64")}
    bad = BadRecords(skip=True)
    assert all_of(opened("csv", twice, good, features=features, bad=bad)) == [{"n": 1}]
    with pytest.raises(
        DataError, match=r"good, record 0, byte 0: there is no column 'm'; it has 'n'"
    ):
        opened("csv", good, features={"m": Feature("scalar", "int64")}).read(0, b"", 1)


def test_a_quote_that_never_ends_and_a_cut_off_file_are_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'n,s\n1,x\n2,"y\n')
    with pytest.raises(DataError, match="row 2: it is no CSV: unexpected end of data"):
        opened("csv", path).read(0, b"", 9)
    cut = tmp_path / "b.csv.gz"
    cut.write_bytes(gzip.compress(b"n,s\n" + b"1,x\n" * 999)[:-12])
    features = {"n": Feature("scalar", "int64")}
    with pytest.raises(
        DataError, match=r"b.csv.gz.*truncated at byte 36: the gzip data is not complete"
    ):
        opened("csv", cut, features=features).read(0, b"", 9999)
    bad = BadRecords(skip=True)
    _, end = opened("csv", cut, features=features, bad=bad).read(0, b"", 9999)
    assert end is None
    assert bad.counts == {"truncated_file": 1}
