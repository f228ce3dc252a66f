"""JSON lines: plain files by number, compressed ones as streams."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.errors import DataError
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.sources import jsonl
from tests.examples import some
from tests.unit import readers
from tests.unit.readers import all_of, examples, opened


def write(path: Any, *lines: Any) -> str:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    return readers.write(path, "".join(f"{text}\n" for text in texts))


def test_blank_lines_returns_and_a_byte_order_mark_are_no_records(tmp_path):
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
def test_a_line_of_zeros_is_a_bad_record_and_no_blank_line(tmp_path, name, line):
    content = b'{"a": 1}\n' + line + b'\n{"a": 3}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name == "a.gz" else content)
    bad = BadRecords(skip=True)
    assert all_of(opened("jsonl", tmp_path / name, bad=bad)) == [{"a": 1}, {"a": 3}]
    assert bad.counts.keys() == {"corrupt_record"}
    with pytest.raises(DataError, match=rf"{name}, line 2, byte 9: the line is no JSON"):
        all_of(opened("jsonl", tmp_path / name))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_errors_name_the_line_as_an_editor_does_wherever_reading_begins(tmp_path, name):
    content = '\n{"a": 1}\n\n \n{"a": 2}\n{"a": "x", "b": 3}\n\n[]\n{"b": 4, "c": 5}\n'
    path = readers.write(tmp_path / name, content)
    a = {"a": Feature("scalar", "int64")}
    missing = r", column 'a': it is missing \(the example has 'b', 'c'\)"
    words = [r"line 6, byte .*'x' is", r"line 8, byte \d+: the line holds", f"line 9.*{missing}"]
    for number, text in enumerate(words, 2):
        skipping = opened("jsonl", path, features=a, bad=BadRecords(skip=True))
        position = b""
        for _ in range(number if name.endswith("gz") else 0):
            position = skipping.read(0, position, 1)[1] or b""
        reader = opened("jsonl", path, features=a)
        with pytest.raises(DataError, match=text):
            reader.read(0, position, 1) if position else reader.take(np.array([number]))


@settings(max_examples=some(60))
@given(st.text("a \n\r", max_size=30), st.integers(1, 5))
def test_lines_are_found_wherever_blocks_end(text, block):
    data = np.frombuffer(text.encode(), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_BLOCK", block)
        n, *index = jsonl.line_index(data).tolist()
    lines, inked = text.split("\n"), [*map(bool, map(str.strip, text.split("\n")))]
    assert [text[a:b] for a, b in zip(index[:n], index[n : 2 * n], strict=True)] == [
        line for line, ink in zip(lines, inked, strict=True) if ink
    ]
    assert index[2 * n :] == [sum(inked[:i]) for i, ink in enumerate(inked) if not ink]


BROKEN = [
    ('{"a": ', "corrupt_record", r"line 2, byte 9: the line is no JSON"),
    ('{"a": 1, "b": 2}', "wrong_type", r"column 'b': the first examples have no such column"),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(("line", "reason", "text"), BROKEN)
def test_a_bad_line_is_named_or_skipped(tmp_path, name, line, reason, text, monkeypatch):
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
