"""numpy files: mapped arrays, ragged pairs, text, and refusals."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from headrace_proto.schema import Field
from headrace_server.reading.columns import Ragged
from headrace_server.reading.source import IndexedSource
from tests.unit import readers
from tests.unit.readers import all_of, opened

ARRAYS: dict[str, np.ndarray] = {
    "n": np.arange(5),
    "x": np.arange(20, dtype=np.float32).reshape(5, 2, 2),
    "big": np.arange(5, dtype=">i4"),
    "fortran": np.asfortranarray(np.arange(10, dtype=np.int16).reshape(5, 2)),
    "raw": np.array([b"", b"a", b"bb", b"ccc", b"d"]),
    "text": np.array(["é", "", "abc", "x", "yy"]),
    "words": np.array([["a", "b"]] * 5),
    "flag": np.array([True, False, True, True, False]),
}
WANT = [
    {
        name: (
            value.encode()
            if isinstance(value, str)
            else [word.encode() for word in value]
            if name == "words"
            else value
        )
        for name, value in zip(ARRAYS, row, strict=True)
    }
    for row in zip(*(array.tolist() for array in ARRAYS.values()), strict=True)
]


def write(path: Any, save: Any = np.savez, **arrays: np.ndarray) -> str:
    content = io.BytesIO()
    save(content, **arrays)
    return readers.write(path, content.getvalue())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_array_is_a_column(tmp_path, save):
    reader = opened("npz", write(tmp_path / "a.npz", save, **ARRAYS))
    assert isinstance(reader, IndexedSource)
    assert reader.fields["x"] == Field("float32", (2, 2))
    assert reader.fields["big"] == Field("int32")
    assert reader.fields["words"] == Field("bytes", (2,))
    assert all_of(reader) == WANT


def test_arrays_are_mapped_and_not_read(tmp_path):
    reader = opened("npz", write(tmp_path / "a.npz", n=np.arange(1000)))
    column = reader.take(slice(10, 20)).columns["n"]
    assert isinstance(column, np.ndarray)
    assert not column.flags.writeable
    assert not column.flags.owndata


def test_offsets_make_ragged_columns(tmp_path):
    path = write(
        tmp_path / "a.npz",
        audio=np.arange(12, dtype=np.float32).reshape(6, 2),
        audio_offsets=np.array([0, 2, 2, 6], np.int32),
        tags=np.array(["a", "b", "c"]),
        tags_offsets=np.array([0, 1, 3, 3]),
        n=np.arange(3),
    )
    ragged = {"audio": "audio_offsets", "tags": "tags_offsets"}
    reader = opened("npz", path, ragged=ragged)
    assert reader.fields["audio"] == Field("float32", (None, 2))
    rows = all_of(reader)
    assert [len(row["audio"]) for row in rows] == [2, 0, 4]
    assert [row["tags"] for row in rows] == [[b"a"], [b"b", b"c"], []]
    assert isinstance(reader.take(slice(0, 1)).columns["audio"], Ragged)
