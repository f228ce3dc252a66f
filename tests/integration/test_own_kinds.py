"""A source, a stage and a shape of the user's, each in one file, are what the project's own are:
through servers, with a shuffle, partitions, workers, deaths, conversion and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

from .dedupe_stage import Dedupe
from .runs_shape import InRuns
from .serving import connect, kill_worker, serving

h5py = pytest.importorskip("h5py")
ROWS = 90
NAMED = "tests.integration.hdf5_source:Hdf5"


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Return the pattern of two files of the same 90 examples that ``expected`` has."""
    for number, (start, stop) in enumerate([(0, 50), (50, ROWS)]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            group = file.create_group("data")
            group["i"] = np.arange(start, stop)
            group["x"] = np.arange(2 * start, 2 * stop, dtype="f4").reshape(-1, 2)
    return str(tmp_path / "*.h5")


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


def test_a_source_of_the_users_gives_what_the_same_examples_in_memory_give(files: str) -> None:
    from .hdf5_source import Hdf5

    want = stream(shaped(in_memory()), partitions=2)
    by_name = hs.read(NAMED, files, group="data")
    assert stream(shaped(by_name), partitions=2, workers=2) == want
    by_class = hs.read(Hdf5, files, group="data")
    assert stream(shaped(by_class), kill_at=6, partitions=2) == want
    assert shaped(by_name) != shaped(by_class.take(80))


class Words(hs.StreamSource):
    """Streams of numbers and their names, read forward."""

    fields = {"i": hs.Field("int64"), "word": hs.Field("bytes")}  # noqa: RUF012
    streams = 3

    def __init__(self, opening: hs.Opening, n: int, broken: int = -1) -> None:
        self._n, self._broken = n, broken

    def read(self, stream: int, position: bytes, limit: int) -> tuple[hs.Chunk, bytes | None]:
        start = int(position or b"0")
        stop = min(self._n, start + limit)
        if start <= self._broken < stop:
            raise RuntimeError("the disk is on fire")
        numbers = np.arange(start, stop)
        words = [f"{stream}/{number}" for number in numbers.tolist()]
        chunk = hs.Chunk.of({"i": numbers, "word": words}, numbers, f"stream {stream}")  # type: ignore[dict-item]
        return chunk, b"%d" % stop if stop < self._n else None


def test_a_source_that_is_read_forward_is_sent_by_value_and_shuffled_by_a_window() -> None:
    pipeline = hs.read(Words, n=20).shuffle(seed=1, window=4).batch(5)
    with hs.run(pipeline, partitions=2, workers=2) as server, connect(server) as feed:
        words = [word for batch in feed for word in batch["word"].tolist()]
    assert sorted(words) == sorted(b"%d/%d" % (s, i) for s in range(3) for i in range(20))
    assert words[:4] != [b"0/0", b"0/1", b"0/2", b"0/3"]


def deduped(values: list[int], window: int) -> list[int]:
    return [v for i, v in enumerate(values) if v not in values[max(0, i - window) : i]]


def test_a_stage_of_the_users_keeps_its_state_over_deaths_restarts_and_before_any_shape(
    tmp_path: Path,
) -> None:
    values = [int(v) for v in np.random.default_rng(0).integers(0, 9, 200)]
    numbered = enumerate(values)
    source = hs.from_examples([{"key": f"{n}", "i": v, "x": [0.0, 1.0]} for n, v in numbered])
    pipeline = source.stage(Dedupe, column="i", window=6).batch(4, allow_smaller_final_batch=True)
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
    segments = source.stage("tests.integration.dedupe_stage:Dedupe", column="i", window=6)
    segments = segments.batch_sequences_with_states(
        "key", ["x"], ["i"], initial_states={}, num_unroll=2, batch_size=1, order="lanes"
    )
    with hs.run(segments) as server, connect(server) as feed:
        assert [int(batch.context["i"][0]) for batch in feed] == want
        assert server.stats()["default"]["dropped"] == {"repeated": len(values) - len(want)}


class Doubling(hs.Stage):
    """Gives each example twice, and forgets to say that ``x`` is gone."""

    def apply(self, chunk: hs.Chunk, bad: Any) -> hs.Chunk:
        twice = self.repeated(chunk, np.full(len(chunk), 2))
        return twice.with_columns({"i": twice.columns["i"]})


def test_classes_of_a_notebook_are_sent_by_value() -> None:
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


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: hs.read(Words, n=20, broken=11), "Words: it raised RuntimeError: the disk is on"),
        (lambda: hs.read(NAMED), "Hdf5: it raised ValueError: no files: give their paths"),
        (
            lambda: in_memory().stage(Doubling),
            r"Doubling: it gave the columns \['i'\], and its fields are \['i', 'x'\]",
        ),
    ],
)
def test_a_fault_of_a_class_of_the_users_names_it_to_the_trainer(declare: Any, text: str) -> None:
    with hs.run(declare().batch(5)) as server:
        with pytest.raises(headrace.DataError, match=text), connect(server) as feed:
            list(feed)


def test_a_mistake_is_refused_where_it_is_declared() -> None:
    memory = in_memory()
    for declare, kind, text in [
        (
            lambda: hs.read(print),
            TypeError,
            "print is a builtin_func.* no subclass",
        ),
        (lambda: hs.read(Dedupe), TypeError, "Dedupe is a type, and no subclass of hs.Source"),
        (lambda: hs.read(Words, n=print), TypeError, r"options\['n'\]=.* it is None, a bool"),
        (lambda: hs.read(Words, n=1, m=20), TypeError, r"read\(.*Words\): .* argument 'm'"),
        (lambda: hs.read("nowhere:Words"), ImportError, "there is no module 'nowhere'"),
        (lambda: memory.stage(Words), TypeError, "Words is a type, and no subclass of hs.Stage"),
        (lambda: memory.stage(Dedupe, column="i", window=0), ValueError, "window=0 is too small"),
        (lambda: memory.stage(Dedupe, column="j", window=1), ValueError, "column='j' is not one"),
        (lambda: memory.stage(Dedupe, column="i"), TypeError, "'window'"),
    ]:
        with pytest.raises(kind, match=text):
            declare()


def in_runs(values: list[int], most: int) -> list[list[int]]:
    runs: list[list[int]] = []
    for value in values:
        if not runs or runs[-1][-1] != value or len(runs[-1]) == most:
            runs.append([])
        runs[-1].append(value)
    return runs


def test_a_shape_of_the_users_goes_on_after_deaths_and_restarts_and_serves_ranks(
    tmp_path: Path,
) -> None:
    values = np.random.default_rng(1).integers(0, 2, 300).tolist()
    source = hs.from_examples([{"i": v, "x": np.arange(v + 1, dtype="f4")} for v in values])
    pipeline = source.shape(InRuns, column="i", most=4)
    want = in_runs(values, 4)
    by_name = source.shape("tests.integration.runs_shape:InRuns", column="i", most=4)
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
            halves = sorted(len(batch["i"]) for batch in feed)
    assert sum(halves) == len(values)
    with pytest.raises(ValueError, match="most=0 is too small"):
        source.shape(InRuns, column="i", most=0)
    with pytest.raises(TypeError, match=r"no subclass of hs\.Shape"):
        source.shape(Dedupe, column="i", window=1)
    with pytest.raises(ValueError, match=r"comes after \.shape\(.*InRuns\)"):
        pipeline.batch(2)
