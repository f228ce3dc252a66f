"""The registry opens every kind of source, and imports no more than it needs."""

from __future__ import annotations

import gzip
import io
import random
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace_proto.errors import DataError
from headrace_server.files.extras import PackageMissing
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading import sources
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.source import IndexedSource
from tests.unit.readers import opened

_TABLE = pa.table(
    {
        "a": [1, 2, None, 4],
        "s": ["x", "yy", "zzz", ""],
        "l": [[1, 2], [3], [], [4, 5, 6]],
        "b": [True, False, True, True],
        "d": pa.array(["u", "v", "u", "w"]).dictionary_encode(),
    }
)
_CSV = b'a,b,c\n1,"x\ny",2.5\n2,z,3.5\n3,"q""q",1\n'
_JSON = b'{"a": 1, "s": "h\xc3\xa9", "l": [1]}\n' * 3


def _arrow(file: io.BytesIO, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(file, _TABLE.schema, options=options) as writer:
        writer.write_table(_TABLE)


def _arrow_stream(file: io.BytesIO) -> None:
    with pa.ipc.new_stream(file, _TABLE.schema) as writer:
        writer.write_table(_TABLE)


def _tar(file: io.BytesIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("0.txt", "0.cls", "é" * 60 + ".txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))


_FILES: dict[str, tuple[str, Callable[[io.BytesIO], object]]] = {
    "arrow": ("arrow", _arrow),
    "compressed arrow": ("arrow", lambda file: _arrow(file, "zstd")),
    "arrow stream": ("arrow", _arrow_stream),
    "parquet": ("parquet", lambda file: parquet.write_table(_TABLE, file)),
    "npz": ("npz", lambda file: np.savez(file, x=np.eye(3), s=np.array(["a", "bb", "c"]))),
    "compressed npz": ("npz", lambda file: np.savez_compressed(file, x=np.eye(3))),
    "csv": ("csv", lambda file: file.write(_CSV)),
    "csv.gz": ("csv", lambda file: file.write(gzip.compress(_CSV))),
    "jsonl": ("jsonl", lambda file: file.write(_JSON)),
    "tar": ("tar", _tar),
}


@pytest.mark.parametrize("name", _FILES)
def test_a_damaged_file_is_a_data_error_or_gives_other_rows(name: str, tmp_path: Path) -> None:
    kind, write = _FILES[name]
    whole = io.BytesIO()
    write(whole)
    drawn = random.Random(name)
    for i in range(60):
        content = bytearray(whole.getvalue())
        for _ in range(drawn.choice((1, 1, 3))):
            content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        path = tmp_path / f"{i}.{name.rpartition(' ')[2]}"
        path.write_bytes(content[: drawn.choice((None, None, drawn.randrange(len(content))))])
        with suppress(DataError):
            _read_all(opened(kind, path, bad=BadRecords(skip=True, logged=1 << 62)))
        path.unlink()


def _read_all(reader: sources.StreamSource) -> None:
    if isinstance(reader, IndexedSource):
        reader.take(np.arange(reader.length)[::-1])
        return
    for stream in range(reader.streams):
        position: bytes | None = b""
        while position is not None:
            _, position = reader.read(stream, position, 2)


def test_a_header_that_is_no_csv_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('"a,b\n1,2\n')
    with pytest.raises(DataError, match=r"a\.csv, record 0, byte 0: unexpected end of data"):
        _read_all(opened("csv", path, features={"a": Feature("scalar", "int64")}))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_missing_pyarrow_is_named_with_the_line_that_installs_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("arrow", "parquet"):
        monkeypatch.delitem(sys.modules, f"{sources.__name__}.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(PackageMissing, match=r"pip install '\.\[server\]' in a checkout"):
        opened(kind)
