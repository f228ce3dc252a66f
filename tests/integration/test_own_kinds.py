"""A source, a stage and a shape of the user's, as the docs write them, are what headrace's own are:
through servers, with a shuffle, partitions, workers, deaths, conversion and resume."""

from __future__ import annotations

import importlib
import re
import sys
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import connect, kill_worker, serving

h5py = pytest.importorskip("h5py")
ROWS = 90
PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the modules of the page by their names, which workers import too."""
    (tmp_path / "kinds").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "kinds")
    modules = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.S)
    for name, text in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / "kinds" / f"{name}.py").write_text(text)
    return SimpleNamespace(**{name: importlib.import_module(name) for name, _ in modules})


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a file of the examples that are ``in_memory``."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("data")
        group["i"] = np.arange(ROWS)
        group["x"] = np.arange(2 * ROWS, dtype="f4").reshape(-1, 2)
    return str(tmp_path / "a.h5")


def in_memory() -> hs.Pipeline:
    return hs.from_examples(
        [{"i": i, "x": np.array([2 * i, 2 * i + 1], "f4")} for i in range(ROWS)]
    )


def rows(batches: Any) -> list[Any]:
    return [(b.partition, b.number, b["i"].tolist(), b["x"].tolist()) for b in batches]


def stream(pipeline: hs.Pipeline, kill_at: int = -1, **options: Any) -> list[Any]:
    found: list[Any] = []
    with hs.run(pipeline, **options) as server, connect(server) as feed:
        for batch in feed:
            found += rows([batch])
            if len(found) == kill_at:
                kill_worker(server)
    return found


def shaped(source: hs.Pipeline) -> hs.Pipeline:
    return source.skip(5).shuffle(seed=3).repeat(2).batch(7, allow_smaller_final_batch=True)


def test_a_source_of_the_users_gives_what_the_same_examples_in_memory_give(kinds, file):
    want = stream(shaped(in_memory()), partitions=2)
    by_name = hs.read("hdf5:Hdf5", file, group="data")
    assert stream(shaped(by_name), partitions=2, workers=2) == want
    by_class = hs.read(kinds.hdf5.Hdf5, file, group="data")
    assert stream(shaped(by_class), kill_at=6, partitions=2) == want
    assert shaped(by_name) != shaped(by_class.take(80))


class Words(hs.StreamSource):
    """Streams of numbers and their names, read forward."""

    fields = {"i": hs.Field("int64"), "word": hs.Field("bytes")}  # noqa: RUF012
    streams = 3

    def __init__(self, opening: hs.Opening, n: int) -> None:
        self._n = n

    def read(self, stream: int, position: bytes, limit: int) -> tuple[hs.Chunk, bytes | None]:
        start = int(position or b"0")
        stop = min(self._n, start + limit)
        numbers = np.arange(start, stop)
        words = [f"{stream}/{number}" for number in numbers.tolist()]
        chunk = hs.Chunk.of({"i": numbers, "word": words}, numbers, f"stream {stream}")  # type: ignore[dict-item]
        return chunk, b"%d" % stop if stop < self._n else None


def test_a_source_that_is_read_forward_is_sent_by_value_and_shuffled_by_a_window():
    pipeline = hs.read(Words, n=20).shuffle(seed=1, window=4).batch(5)
    with hs.run(pipeline, partitions=2, workers=2) as server, connect(server) as feed:
        words = [word for batch in feed for word in batch["word"].tolist()]
    assert sorted(words) == sorted(b"%d/%d" % (s, i) for s in range(3) for i in range(20))
    assert words[:4] != [b"0/0", b"0/1", b"0/2", b"0/3"]


def deduped(values: list[int], window: int) -> list[int]:
    return [v for i, v in enumerate(values) if v not in values[max(0, i - window) : i]]


def test_a_stage_of_the_users_keeps_its_state_over_deaths_restarts_and_before_any_shape(
    tmp_path, kinds
):
    values = [int(v) for v in np.random.default_rng(0).integers(0, 9, 200)]
    numbered = enumerate(values)
    source = hs.from_examples([{"key": f"{n}", "i": v, "x": [0.0, 1.0]} for n, v in numbered])
    pipeline = source.stage(kinds.dedupe.Dedupe, column="i", window=6).batch(
        4, allow_smaller_final_batch=True
    )
    want = deduped(values, 6)
    found = stream(pipeline, kill_at=3)
    assert [i for _, _, batch, _ in found for i in batch] == want
    again: list[Any] = []
    for stop in (4, 9, 10**6):
        with serving(pipeline, state_dir=str(tmp_path / "state")) as server:
            with connect(server, commit="explicit") as feed:
                for _, batch in zip(range(stop), feed, strict=False):
                    again += rows([batch])
                    batch.commit()
    assert again == found
    segments = source.stage("dedupe:Dedupe", column="i", window=6)
    segments = segments.batch_sequences_with_states(
        "key", ["x"], ["i"], initial_states={}, num_unroll=2, batch_size=1, order="lanes"
    )
    with hs.run(segments) as server, connect(server) as feed:
        assert [int(batch.context["i"][0]) for batch in feed] == want
        assert server.stats()["default"]["dropped"] == {"repeated": len(values) - len(want)}


def test_classes_of_a_notebook_are_sent_by_value():
    class Tens(hs.StreamSource):
        fields = {"i": hs.Field("int64")}  # noqa: RUF012
        streams = 1

        def __init__(self, opening: hs.Opening) -> None:
            pass

        def read(self, stream: int, position: bytes, limit: int) -> tuple[hs.Chunk, bytes | None]:
            return hs.Chunk.of({"i": 10 * np.arange(6)}, np.arange(6), "tens"), None

    class Negative(hs.Stage):
        keeps_count = repeatable = True

        def apply(self, chunk: hs.Chunk, bad: Any) -> hs.Chunk:
            return chunk.with_columns({"i": -np.asarray(chunk.columns["i"])})

    with hs.run(hs.read(Tens).stage(Negative).repeat(2).batch(4)) as server:
        with connect(server) as feed:
            found = [i for batch in feed for i in batch["i"].tolist()]
    assert found == 2 * [0, -10, -20, -30, -40, -50]


def in_runs(values: list[int]) -> list[list[int]]:
    return [[*run] for _, run in groupby(values)]


def test_a_shape_of_the_users_goes_on_after_deaths_and_restarts_and_serves_ranks(tmp_path, kinds):
    values = np.random.default_rng(1).integers(0, 2, 300).tolist()
    source = hs.from_examples([{"i": v, "x": np.arange(v + 1, dtype="f4")} for v in values])
    pipeline = source.shape(kinds.runs.InRuns, column="i")
    want = in_runs(values)
    by_name = source.shape("runs:InRuns", column="i")
    for one, kill_at in ((pipeline, 7), (by_name, -1)):
        assert [batch for _, _, batch, _ in stream(one, kill_at=kill_at)] == want
    again: list[Any] = []
    for stop in (5, 11, 10**6):
        with serving(pipeline, state_dir=str(tmp_path / "state")) as server:
            with connect(server, commit="explicit") as feed:
                for _, batch in zip(range(stop), feed, strict=False):
                    again.append(batch["i"].tolist())
                    batch.commit()
    assert again == want
    with hs.run(pipeline, partitions=2, workers=2) as server:
        with connect(server, rank=0, world_size=1) as feed:
            assert sum(len(batch["i"]) for batch in feed) == len(values)
