"""The registry opens every kind of source, and imports no more than it needs."""

from __future__ import annotations

import gzip
import io
import os
import random
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace_proto.errors import DataError, LimitExceeded
from headrace_server.files.durable_file import MOST_OPEN
from headrace_server.files.extras import PackageMissing
from headrace_server.files.index_cache import IndexCache
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading import sources
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.source import IndexedSource
from tests.shortage import no_descriptors
from tests.unit.readers import opened
from tests.unit.tfrecord_writer import example, feature, frame


@cache
def _table() -> pa.Table:
    """Arrow imports pandas to make it, so processes that only collect this test do not."""
    columns = {
        "a": [1, 2, None, 4],
        "s": ["x", "yy", "zzz", ""],
        "l": [[1, 2], [3], [], [4, 5, 6]],
        "b": [True, False, True, True],
        "d": pa.array(["u", "v", "u", "w"]).dictionary_encode(),
    }
    return pa.table(columns)


_CSV = b'a,b,c\n1,"x\ny",2.5\n2,z,3.5\n3,"q""q",1\n'
_JSON = b'{"a": 1, "s": "h\xc3\xa9", "l": [1]}\n' * 3


def _arrow(file: io.BytesIO, compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(file, _table().schema, options=options) as writer:
        writer.write_table(_table())


def _arrow_stream(file: io.BytesIO) -> None:
    with pa.ipc.new_stream(file, _table().schema) as writer:
        writer.write_table(_table())


def _tar(file: io.BytesIO) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("0.txt", "0.cls", "é" * 60 + ".txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))


def _tar_gz(file: io.BytesIO) -> None:
    plain = io.BytesIO()
    _tar(plain)
    file.write(gzip.compress(plain.getvalue()))


_FILES: dict[str, tuple[str, Callable[[io.BytesIO], object]]] = {
    "arrow": ("arrow", _arrow),
    "compressed arrow": ("arrow", lambda file: _arrow(file, "zstd")),
    "arrow stream": ("arrow", _arrow_stream),
    "parquet": ("parquet", lambda file: parquet.write_table(_table(), file)),
    "npz": ("npz", lambda file: np.savez(file, x=np.eye(3), s=np.array(["a", "bb", "c"]))),
    "compressed npz": ("npz", lambda file: np.savez_compressed(file, x=np.eye(3))),
    "csv": ("csv", lambda file: file.write(_CSV)),
    "csv.gz": ("csv", lambda file: file.write(gzip.compress(_CSV))),
    "jsonl": ("jsonl", lambda file: file.write(_JSON)),
    "tar": ("tar", _tar),
}


@pytest.mark.parametrize("name", _FILES)
def test_a_damaged_file_is_a_data_error_or_gives_other_rows(name, tmp_path):
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


_RECORDS = b"".join(frame(example({"a": feature("int", [i])})) for i in range(3))
_MANY = {
    **_FILES,
    "jsonl.gz": ("jsonl", lambda file: file.write(gzip.compress(_JSON))),
    "tar.gz": ("tar", _tar_gz),
    "tfrecord": ("tfrecord", lambda file: file.write(_RECORDS)),
    "tfrecord.gz": ("tfrecord", lambda file: file.write(gzip.compress(_RECORDS))),
    "npy": ("tokens", lambda file: np.save(file, np.arange(99))),
}


@pytest.mark.parametrize("name", _MANY)
def test_no_source_keeps_a_file_open_for_each_of_its_files(name, tmp_path):
    kind, write = _MANY[name]
    for i in range(2 * MOST_OPEN):
        with open(tmp_path / f"{i}.{name.rpartition(' ')[2]}", "wb") as file:
            write(file)  # type: ignore[arg-type]
    before = len(os.listdir("/proc/self/fd"))
    features = {"a": Feature("scalar", "int64")} if kind == "tfrecord" else None
    options = {"dtype": None, "window": 9, "lanes": None, "shift": 0} if kind == "tokens" else {}
    cache = IndexCache(str(tmp_path / "cache"))
    bad = BadRecords(skip=True, logged=1 << 62)
    reader = opened(kind, tmp_path / "[0-9]*", features=features, cache=cache, bad=bad, **options)
    for _ in range(2):
        for stream in range(reader.streams):
            reader.read(stream, b"", 1)
        assert len(os.listdir("/proc/self/fd")) <= before + MOST_OPEN
        _read_all(reader)
    index = r"|\w+\.idx" if name == "jsonl" else ""  # which may be there from the first reads
    named = rf"((0|\[0-9\]\*)\.?{index}).* can not be opened: .*raise the limit to"
    for path in (next(tmp_path.glob("0.*")), tmp_path / "[0-9]*"):
        with no_descriptors(), pytest.raises(LimitExceeded, match=named):
            opened(kind, path, features=features, cache=cache, **options).read(0, b"", 1)


#: Two contents of one size whose records do not lie alike.
_ALIKE: dict[str, tuple[str, dict[str, Any], tuple[bytes, ...]]] = {
    "jsonl": ("jsonl", {}, (b'{"a": 1}\n{"a": 22}\n', b'{"a": 11}\n{"a": 2}\n')),
    "tfrecord": (
        "tfrecord",
        {"features": {"a": Feature("scalar", "bytes")}},
        tuple(
            b"".join(frame(example({"a": feature("bytes", [b"x" * n])})) for n in sizes)
            for sizes in ((3, 5), (5, 3))
        ),
    ),
}


@pytest.mark.parametrize("name", _ALIKE)
def test_a_file_that_changed_with_its_size_and_time_alike_is_noticed_by_its_index(name, tmp_path):
    kind, more, contents = _ALIKE[name]
    before, after = contents
    assert len(before) == len(after)
    path, cache = tmp_path / f"a.{name}", IndexCache(str(tmp_path / "cache"))
    path.write_bytes(before)
    status = path.stat()
    for _ in range(2):
        assert opened(kind, path, cache=cache, **more).length == 2
    path.write_bytes(after)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match=rf"a\.{name} has changed, though its size"):
        opened(kind, path, cache=cache, **more)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_missing_pyarrow_is_named_with_the_line_that_installs_it(kind, monkeypatch):
    for name in ("arrow", "parquet"):
        monkeypatch.delitem(sys.modules, f"{sources.__name__}.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(PackageMissing, match=r"pip install '\.\[server\]' in a checkout"):
        opened(kind)
