"""A cache that shows how far indexing is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.cli import progress
from headrace_server.files.manifest import resolve
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.sources import open_reader


def test_each_file_counts_with_all_its_bytes_in_the_end_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for i in range(3):
        (tmp_path / f"{i}.jsonl").write_text('{"i": 1}\n' * (i + 1))
    pipeline = hs.read_jsonl(f"{tmp_path}/*.jsonl", {"i": hs.scalar("int64")}).batch(1)
    source = pipeline.declaration().source
    files = resolve(source.paths)
    told: list[int] = []
    monkeypatch.setattr(progress.Progress, "to", lambda self, done: told.append(done))
    cache = progress.reporting_cache(files)
    for _ in range(2):
        open_reader(source, files, BadRecords(), cache).close()
    wanted = np.cumsum([file.size for file in files]).tolist()
    assert sorted(set(told)) == wanted and told == sorted(told)
