"""JSON lines: plain files by number, compressed ones as streams."""

from __future__ import annotations

import gzip
import json
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.source import IndexedSource, StreamSource
from headrace_server.reading.sources import jsonl
from tests.examples import some
from tests.unit.readers import all_of, examples, opened

ROWS: list[dict[str, Any]] = [
    {"id": f"é{i}", "n": i, "x": [0.5 * i] * (i % 3), "pair": [i, -i], "ok": i % 2 == 0}
    for i in range(9)
]
WANT = [{**row, "id": row["id"].encode()} for row in ROWS]


def write(path: Any, *lines: Any) -> str:
    text = "".join(
        (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n"
        for line in lines
    )
    with fsspec.open(str(path), "wb") as sink:
        content = text.encode(errors="surrogateescape")
        sink.write(gzip.compress(content) if str(path).endswith(".gz") else content)
    return str(path)


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", IndexedSource), ("a.gz", StreamSource)])
def test_objects_are_read_in_every_order(tmp_path: Path, name: str, kind: type) -> None:
    reader = opened("jsonl", write(tmp_path / name, *ROWS))
    assert isinstance(reader, kind)
    assert reader.fields == {
        "id": Field("bytes"),
        "n": Field("int64"),
        "x": Field("float64", (None,)),
        "pair": Field("int64", (2,)),
        "ok": Field("bool"),
    }
    assert all_of(reader) == WANT


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_remote_files_are_read_like_local_ones(ending: str) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    for i in range(3):
        write(f"{folder}/{i}.jsonl{ending}", *ROWS[3 * i : 3 * i + 3])
    assert all_of(opened("jsonl", f"{folder}/*")) == WANT


def test_blank_lines_returns_and_a_byte_order_mark_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "a"
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n \t \r\n{"a": 2}\n\n{"a": 3}'
    path.write_bytes(content)
    reader = opened("jsonl", path)
    assert all_of(reader) == [{"a": 1}, {"a": 2}, {"a": 3}]
    chunk = reader.take(slice(0, 3))
    assert [content[at : at + 5] for at in chunk.origin.offset] == [b'{"a":'] * 3
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    assert all_of(opened("jsonl", tmp_path / "a.gz")) == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("line", [b"\0" * 7, b" \x01", b"\x1f "])
def test_a_line_of_zeros_is_a_bad_record_and_no_blank_line(
    tmp_path: Path, name: str, line: bytes
) -> None:
    content = b'{"a": 1}\n' + line + b'\n{"a": 3}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name == "a.gz" else content)
    bad = BadRecords(skip=True)
    assert all_of(opened("jsonl", tmp_path / name, bad=bad)) == [{"a": 1}, {"a": 3}]
    assert bad.counts.keys() == {"corrupt_record"}
    with pytest.raises(DataError, match=rf"{name}, record 1, byte 9: the line is no JSON"):
        all_of(opened("jsonl", tmp_path / name))


@settings(max_examples=some(60))
@given(st.text("a \n\r", max_size=30), st.integers(1, 5))
def test_lines_are_found_wherever_blocks_end(text: str, block: int) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_BLOCK", block)
        index = jsonl.line_index(data)
    got = [text[a:b] for a, b in index.reshape(2, -1).T]
    assert got == [line for line in text.split("\n") if line.strip(" \r")]


BROKEN = [
    ('{"a": ', "corrupt_record", r"record 1, byte 9: the line is no JSON"),
    ("[1]", "corrupt_record", r"which is no JSON object"),
    ('{"a": "\udcff"}', "corrupt_record", r"the line is not UTF-8"),
    ("[" * 100_000, "corrupt_record", r"nested too deeply|no JSON"),
    ('{"a": "x"}', "wrong_type", r"record 1, byte 9, column 'a': 'x' is bytes"),
    ('{"a": 1.5}', "wrong_type", r"column 'a': 1.5 is float64 .*declare the features"),
    ('{"a": 123456789012345678901234567890}', "wrong_type", "column 'a'"),
    ('{"a": [1]}', "wrong_type", r"shape \[1\] does not fit int64\[\]"),
    ('{"a": null}', "missing_feature", r"record 1, byte 9, column 'a': it is missing"),
    ("{}", "missing_feature", r"column 'a': it is missing; declare .*, with a default"),
    ('{"a": 1, "b": 2}', "wrong_type", r"column 'b': the first examples have no such column"),
]


def test_a_declared_column_that_is_misspelt_is_answered_with_the_one_that_is_there(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a", {"audio": 1, "label": 2})
    reader = opened("jsonl", path, features={"adio": Feature("scalar", "int64")})
    with pytest.raises(DataError, match=r"'adio': it is missing; .*; did you mean 'audio'\?$"):
        reader.take(slice(0, 1))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(("line", "reason", "text"), BROKEN)
def test_a_bad_line_is_named_or_skipped(
    tmp_path: Path,
    name: str,
    line: str,
    reason: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace_server.reading.example_rows.PROBED", 1)
    path = write(tmp_path / name, {"a": 1}, line, {"a": 3})
    reader = opened("jsonl", path)
    with pytest.raises(DataError, match=text) as caught:
        reader.read(0, b"", 9) if name.endswith("gz") else reader.take(slice(0, 3))
    assert path in str(caught.value)
    bad = BadRecords(skip=True)
    reader = opened("jsonl", path, bad=bad)
    if name.endswith("gz"):
        chunk, end = reader.read(0, b"", 9)
        assert end is None
    else:
        chunk = reader.take(slice(0, 3))
        assert reader.take(np.array([2, 1, 0])).ordinals.tolist() == [2, 0]
        bad.counts[reason] -= 1
    assert examples(chunk) == [{"a": 1}, {"a": 3}]
    assert chunk.ordinals.tolist() == [0, 2]
    assert bad.counts == {reason: 1}
    assert all_of(reader) == [{"a": 1}, {"a": 3}]


def test_where_no_record_shows_the_columns_they_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "{", "}")
    with pytest.raises(DataError, match="declare the features"):
        opened("jsonl", path, bad=BadRecords(skip=True))
    with pytest.raises(DataError, match="declare the features"):
        opened("jsonl", write(tmp_path / "a.gz", "{", "}"), bad=BadRecords(skip=True))
    for name in ("b", "b.gz"):
        with pytest.raises(DataError, match=rf"{name}, record 1, byte 9, column 'a': 'x' is bytes"):
            opened("jsonl", write(tmp_path / name, {"a": 1}, {"a": "x"}))


def test_declared_features_choose_cast_and_fill(tmp_path: Path) -> None:
    features = {
        "n": Feature("scalar", "float32"),
        "x": Feature("sequence", "float32"),
        "z": Feature("fixed", "int8", (2,), [3, 3], True),
    }
    path = write(tmp_path / "a", {"n": 1, "x": [], "y": "q"}, {"n": 2, "x": [1], "z": [4, 5]})
    reader = opened("jsonl", path, features=features)
    assert all_of(reader) == [
        {"n": 1.0, "x": [], "z": [3, 3]},
        {"n": 2.0, "x": [1.0], "z": [4, 5]},
    ]
    bad_default = {"n": Feature("scalar", "int8", (), "x", True)}
    with pytest.raises(ValueError):
        opened("jsonl", path, features=bad_default)


@pytest.mark.parametrize(
    ("damage", "reason", "text"),
    [
        (
            lambda c: c[:-20],
            "truncated_file",
            r"truncated at byte \d+: the gzip data is not complete",
        ),
        (lambda c: c[:40] + bytes([c[40] ^ 255]) + c[41:], "corrupt_file", "damaged"),
        (lambda c: c[:-8] + b"\0" * 8, "corrupt_file", "damaged"),
    ],
)
def test_a_damaged_compressed_file_ends_where_it_breaks(
    tmp_path: Path, damage: Any, reason: str, text: str
) -> None:
    features = {"n": Feature("scalar", "int64")}
    content = gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS * 50).encode())
    (tmp_path / "a.gz").write_bytes(damage(content))
    with pytest.raises(DataError, match=f"a.gz.*{text}"):
        opened("jsonl", tmp_path / "a.gz", features=features).read(0, b"", 1000)
    bad = BadRecords(skip=True)
    chunk, end = opened("jsonl", tmp_path / "a.gz", features=features, bad=bad).read(0, b"", 1000)
    assert end is None
    assert [row["n"] for row in examples(chunk)] == [i % 9 for i in range(len(chunk))]
    assert bad.counts == {reason: 1}
