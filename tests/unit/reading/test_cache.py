"""A pipeline gives the same rows with a cache and without, written by any workers."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_server.core.plan import Read
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading import cache as module
from headrace_server.reading.cache import cached
from headrace_server.reading.intake import Intake
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.sources import open_reader
from tests.examples import some
from tests.unit.readers import OPEN, numbered


class Calls:
    """Examples that a function was called with: no plain value, which would count as its code."""

    def __init__(self) -> None:
        self.seen: list[int] = []


CALLS = Calls()


def spelled(example):
    CALLS.seen.append(int(example["i"]))
    if example["i"] == 999:
        raise ValueError("not this one")
    return {"i": example["i"], "v": np.arange(example["i"] % 4), "t": b"t%d" % example["i"]}


def several(example):
    return [{**example, "k": k} for k in range(int(example["i"]) % 3)]


def no_fives(example):
    return bool(example["i"] % 5)


def drawn(example, rng):
    return {**example, "u": rng.random()}


class Worker:
    """One process with all or some partitions of a feed."""

    def __init__(self, pipeline: Pipeline, partitions: int = 1, own: Any = None) -> None:
        self.declaration = pipeline.batch(2, dynamic_pad=True).declaration()
        skips = self.declaration.policy.on_bad_example == "skip"
        self.bad = BadRecords(skips)
        source = self.declaration.source
        files = resolve(source.paths)
        opened = open_reader(source, files, self.bad, IndexCache(None))
        self.beats = itertools.count()
        self.reader: Any = cached(opened, self.declaration, files, self.beats.__next__)
        OPEN.append(self.reader)
        self.intakes = {
            partition: Intake(self.reader, self.declaration, partition, partitions, self.bad)
            for partition in (range(partitions) if own is None else own)
        }

    @property
    def complete(self) -> bool:
        """Whether what is read now comes from the cache."""
        if hasattr(self.reader, "take"):
            chunk = self.reader.take(np.zeros(0, np.int64))
        else:
            chunk, _ = self.reader.read(0, b"", 1)
        return chunk.read.from_cache

    def epoch(self, epoch: int, limit: int = 7, stop: int = 10**9) -> list[Any]:
        """The rows of one epoch of each partition, as far as ``stop`` reads go."""
        rows: list[Any] = []
        for intake in self.intakes.values():
            position = intake.start()
            for _ in range(stop):
                intake.begin()
                chunk, position = intake.chunk(Read(0, epoch, position, limit))
                intake.end()
                rows += numbered(chunk)
                if position is None:
                    break
        return rows


def source(n: int = 40) -> Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).shuffle(seed=3).repeat(None)


def declared(directory: Any = None, n: int = 40) -> Pipeline:
    pipeline = source(n).filter(no_fives).map(spelled).flat_map(several)
    if directory is not None:
        pipeline = pipeline.cache(directory)
    return pipeline.map(drawn, seed=7).filter(no_fives)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*/*"))


def test_later_epochs_read_the_cache_and_give_the_same_rows(tmp_path: Path) -> None:
    plain, kept = Worker(declared()), Worker(declared(tmp_path))
    assert kept.epoch(0) == plain.epoch(0) and kept.complete
    CALLS.seen.clear()
    assert [kept.epoch(e) for e in (1, 2)] != [[], []] and not CALLS.seen
    assert [kept.epoch(e, limit=50) for e in (1, 2)] == [plain.epoch(e, 50) for e in (1, 2)]


def test_a_second_server_reads_it_from_its_first_epoch_on_with_any_partitions(
    tmp_path: Path,
) -> None:
    Worker(declared(tmp_path)).epoch(0)
    CALLS.seen.clear()
    other = Worker(declared(tmp_path), partitions=3)
    assert other.complete
    rows = other.epoch(0)
    assert not CALLS.seen
    assert rows == Worker(declared(), partitions=3).epoch(0)
    assert other.intakes[0].fields == Worker(declared()).intakes[0].fields


def test_workers_write_their_parts_and_the_last_one_completes(tmp_path: Path) -> None:
    one, two = (Worker(declared(tmp_path), 2, own=[k]) for k in range(2))
    plain = Worker(declared(), 2)
    first = one.epoch(0)
    assert not one.complete and "complete.json" not in files(tmp_path)
    assert first + two.epoch(0) == plain.epoch(0)
    assert two.complete and "complete.json" in files(tmp_path)
    assert one.epoch(1) + two.epoch(1) == plain.epoch(1)


def test_a_part_that_a_killed_worker_left_is_not_used(tmp_path: Path) -> None:
    killed = Worker(declared(tmp_path))
    killed.epoch(0, stop=4)  # and it does nothing more
    assert [name for name in files(tmp_path) if name.endswith(".arrow")] == []
    again = Worker(declared(tmp_path))
    assert not again.complete
    assert again.epoch(0) == Worker(declared()).epoch(0)
    assert again.complete
    assert not [name for name in files(tmp_path) if name.endswith(".part")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=some(25))
@given(stops=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=4))
def test_rows_come_once_from_the_parts_of_any_number_of_processes(
    tmp_path: Path, stops: list[Any]
) -> None:
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    lives = [Worker(declared(directory)) for _ in stops]
    for epoch, (life, (stop, limit)) in enumerate(zip(lives, stops, strict=True)):
        life.epoch(epoch, limit, stop)
        life.reader.close()
    last = Worker(declared(directory))
    plain = Worker(declared())
    assert [last.epoch(e) for e in range(2)] == [plain.epoch(e) for e in range(2)]
    assert last.complete


def test_small_parts_are_finished_as_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_ROWS", 5)
    worker = Worker(declared(tmp_path))
    worker.epoch(0)
    assert len([name for name in files(tmp_path) if name.endswith(".arrow")]) > 3
    assert worker.epoch(1) == Worker(declared()).epoch(1)


def test_another_declaration_has_a_cache_of_its_own(tmp_path: Path) -> None:
    Worker(declared(tmp_path)).epoch(0)
    other = source().map(spelled).cache(tmp_path)
    assert not Worker(other).complete
    assert not Worker(declared(tmp_path, n=41)).complete
    later = source().filter(no_fives).map(spelled).flat_map(several).cache(tmp_path)
    assert Worker(later).complete, "what follows the cache does not count"


def test_changed_files_of_the_source_make_another_cache(tmp_path: Path) -> None:
    for n in (5, 6):
        np.savez(tmp_path / "a.npz", i=np.arange(n))
        worker = Worker(hs.read_npz(str(tmp_path / "a.npz")).cache(tmp_path / "kept"))
        assert not worker.complete
        assert len(worker.epoch(0)) == n and worker.complete


def test_an_example_that_is_bad_is_no_row_and_one_that_ends_the_feed_is_not_kept(
    tmp_path: Path,
) -> None:
    rows = hs.from_examples([{"i": i} for i in (1, 2, 999, 4)]).repeat(None)
    strict = Worker(rows.map(spelled).cache(tmp_path))
    with pytest.raises(DataError, match="record 2: map function"):
        strict.epoch(0, limit=1)
    assert not strict.complete
    skips = Worker(rows.map(spelled).options(on_bad_example="skip").cache(tmp_path))
    first = skips.epoch(0, limit=1)
    assert skips.complete and len(first) == 3
    assert skips.epoch(1, limit=1) == first


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cache\(directory='.*file'\): .*Not a directory"):
        Worker(declared(tmp_path / "file"))


def test_a_full_disk_ends_the_writing_and_not_the_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(module, "put_in_place", full)
    worker = Worker(declared(tmp_path))
    plain = Worker(declared())
    assert [worker.epoch(e) for e in range(2)] == [plain.epoch(e) for e in range(2)]
    assert "is not written any more: [Errno 28] no room" in caplog.text
    assert not worker.complete and "complete.json" not in files(tmp_path)


def test_a_cache_that_another_process_completes_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker goes on from the source meanwhile, and shows progress while it completes."""
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    Worker(declared(tmp_path)).epoch(0)
    mark = next(tmp_path.glob("*/complete.json"))
    mark.unlink()
    with open(mark.with_name("lock"), "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        worker, plain = Worker(declared(tmp_path)), Worker(declared())
        assert worker.epoch(0) == plain.epoch(0) and not worker.complete
    before = next(worker.beats)
    assert worker.epoch(1) == plain.epoch(1) and worker.complete
    assert next(worker.beats) - before > 4


def test_a_cache_without_its_mark_is_completed_again(tmp_path: Path) -> None:
    Worker(declared(tmp_path)).epoch(0)
    mark = next(tmp_path.glob("*/complete.json"))
    assert json.loads(mark.read_text())["length"] == 40
    mark.unlink()
    again = Worker(declared(tmp_path))
    assert again.epoch(0) == Worker(declared()).epoch(0)
    assert again.complete


def lines(path: Path, sizes: list[int], window: int | None, kept: Path | None = None) -> Pipeline:
    """Files that can only be read forward, in which every seventh line is no record."""
    if not path.exists():
        path.mkdir()
        for number, size in enumerate(sizes):
            rows = [f'{{"i": {100 * number + i}}}' if i % 7 != 3 else "{" for i in range(size)]
            (path / f"{number}.jsonl").write_text("".join(row + "\n" for row in rows))
    source = hs.read_jsonl(str(path / "*.jsonl"), {"i": hs.scalar("int64")})
    if window is not None:
        source = source.shuffle(seed=5, window=window)
    source = source.repeat(None).options(on_bad_example="skip")
    mapped = source.filter(no_fives).map(spelled).flat_map(several)
    return (mapped if kept is None else mapped.cache(kept)).map(drawn, seed=7)


@pytest.mark.parametrize("name", ["complete.json", "part-*.json", "index.npy", "part-*.npy"])
def test_a_damaged_file_of_a_cache_names_the_cache(tmp_path: Path, name: str) -> None:
    Worker(source().cache(tmp_path)).epoch(0)
    (key,) = tmp_path.iterdir()
    if name == "part-*.npy":
        (key / "complete.json").unlink()
    next(key.glob(name)).write_bytes(b"{")
    with pytest.raises(DataError, match=rf"the cache {key} is damaged: .*Remove that directory"):
        Worker(source().cache(tmp_path))


@pytest.mark.parametrize("name", ["complete.json", "part-*.json", "part-*.arrow", "index.npy"])
def test_a_flipped_bit_is_an_error_that_names_the_cache_and_never_another_row(
    tmp_path: Path, name: str
) -> None:
    kept = hs.from_function(counted, shards=4).repeat(None).map(spelled).cache(tmp_path)
    rows = Worker(kept).epoch(0)
    assert rows and Worker(kept).complete
    (file,) = tmp_path.glob(f"*/{name}")
    whole = file.read_bytes()
    for place in random.Random(7).sample(range(len(whole)), 40):
        file.write_bytes(bytes(byte ^ (at == place) << place % 8 for at, byte in enumerate(whole)))
        with pytest.raises(DataError, match=rf"the cache {file.parent} is damaged: .*Remove that"):
            Worker(kept).epoch(0)
    file.write_bytes(whole)
    assert Worker(kept).epoch(0) == rows


@pytest.mark.parametrize("end", ["json", "npy"])
def test_a_flipped_bit_of_a_part_is_found_when_the_cache_is_completed(
    tmp_path: Path, end: str
) -> None:
    Worker(declared(tmp_path)).epoch(0)
    next(tmp_path.glob("*/complete.json")).unlink()
    (file,) = tmp_path.glob(f"*/part-*.{end}")
    whole = file.read_bytes()
    for place in random.Random(7).sample(range(len(whole)), 40):
        file.write_bytes(bytes(byte ^ (at == place) << place % 8 for at, byte in enumerate(whole)))
        with pytest.raises(DataError, match=rf"the cache {file.parent} is damaged: .*Remove that"):
            Worker(declared(tmp_path))
    file.write_bytes(whole)
    assert Worker(declared(tmp_path)).complete


def test_a_record_batch_is_verified_when_the_first_of_its_rows_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damage of one batch touches the rows of no other."""
    monkeypatch.setattr(module, "_BATCH_BYTES", 1)
    kept = hs.from_examples([{"i": i} for i in range(40)]).repeat(None).cache(tmp_path)
    rows = Worker(kept).epoch(0, limit=4)
    (file,) = tmp_path.glob("*/part-*.arrow")
    data = bytearray(file.read_bytes())
    at = data.index(np.arange(20, 24).tobytes())
    data[at] ^= 1
    file.write_bytes(data)
    worker = Worker(kept)
    assert worker.epoch(0, limit=4, stop=5) == rows[:20]
    with pytest.raises(DataError, match=r"the bytes of part-.*\.arrow from \d+ to \d+ are not"):
        worker.epoch(0, limit=4)


def test_a_cache_that_is_removed_while_it_is_used_serves_on(tmp_path: Path) -> None:
    worker, plain = Worker(declared(tmp_path)), Worker(declared())
    assert worker.epoch(0) == plain.epoch(0) and worker.complete
    shutil.rmtree(tmp_path)
    assert worker.epoch(1) == plain.epoch(1)


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(
    sizes=SIZES,
    window=st.sampled_from([None, 1, 8, 100]),
    partitions=st.integers(1, 4),
    limits=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
def test_a_source_that_is_read_forward_gives_the_same_rows_from_its_cache(
    tmp_path: Path, sizes: list[int], window: int | None, partitions: int, limits: tuple[int, int]
) -> None:
    path = tmp_path / str(len(list(tmp_path.iterdir())))
    plain = Worker(lines(path, sizes, window), partitions)
    kept = Worker(lines(path, sizes, window, path / "kept"), partitions)
    for epoch, limit in enumerate(limits):
        assert kept.epoch(epoch, limit) == plain.epoch(epoch, limit)
    assert kept.complete or not plain.epoch(0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(sizes=SIZES, window=st.sampled_from([None, 4]), few=st.booleans(), limit=st.integers(1, 5))
def test_a_position_in_a_stream_holds_with_the_cache_and_without_it(
    tmp_path: Path, sizes: list[int], window: int | None, few: bool, limit: int
) -> None:
    """Every step is read by another process: 1. from files, 2. from the cache, 3. from files again,
    since the cache was removed."""
    path = tmp_path / str(len(list(tmp_path.iterdir())))
    partitions = len(sizes) + 1 if few else 1
    Worker(lines(path, sizes, window, path / "complete"), partitions).epoch(0)
    workers = [
        Worker(lines(path, sizes, window, path / name), partitions, own=[0])
        for name in ("removed", "complete", "removed")
    ]
    plain = Worker(lines(path, sizes, window), partitions, own=[0]).epoch(0)
    assert not workers[0].complete and (workers[1].complete or not plain)
    rows: list[Any] = []
    position = workers[0].intakes[0].start()
    for step in range(10**9):
        chunk, position = workers[step % 3].intakes[0].chunk(Read(0, 0, position, limit))
        rows += numbered(chunk)
        if position is None:
            break
    assert rows == plain


def counted(shard):
    return ({"i": 10 * shard + i} for i in range(shard * 4))


def test_rows_of_a_generator_are_cached_by_several_workers(tmp_path: Path) -> None:
    source = hs.from_function(counted, shards=4).repeat(None).map(spelled)
    plain = Worker(source, 2)
    one, two = (Worker(source.cache(tmp_path), 2, own=[k]) for k in range(2))
    assert one.epoch(0) + two.epoch(0) == plain.epoch(0)
    assert not one.complete and two.complete
    CALLS.seen.clear()
    assert two.epoch(1) == plain.epoch(1)[len(one.epoch(1)) :]
    again = Worker(source.cache(tmp_path), partitions=7)
    CALLS.seen.clear()
    rows = again.epoch(5)
    assert again.complete and not CALLS.seen
    assert sorted(row["i"] for _, _, row in rows) == [
        10 * s + i for s in range(4) for i in range(4 * s)
    ]


def test_a_stream_of_which_only_a_beginning_was_read_is_not_complete(tmp_path: Path) -> None:
    source = hs.from_function(counted, shards=3).repeat(None).cache(tmp_path)
    worker = Worker(source)
    worker.epoch(0, limit=3, stop=2)
    worker.reader.close()
    assert not Worker(source).complete
    again = Worker(source)
    again.epoch(0)
    assert again.complete


def test_groups_are_the_same_from_a_cache(tmp_path: Path) -> None:
    rows = hs.from_examples([{"i": i if i % 6 else 999} for i in range(40)]).repeat(None)
    rows = rows.options(on_bad_example="skip").filter(no_fives).map(spelled)
    plain, kept = (
        Worker(one.weighted_resample("i", 1.0, group=7, seed=2))
        for one in (rows, rows.cache(tmp_path))
    )
    for epoch in range(3):
        assert kept.epoch(epoch, limit=7) == plain.epoch(epoch, limit=7)
    assert kept.complete


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p: p.cache(3), TypeError, "directory=3 is an int, not a path"),
        (lambda p: p.cache(""), ValueError, "directory='' is no directory"),
        (lambda p: p.cache("s3://x/y"), ValueError, "is no directory of this machine"),
        (lambda p: p.map(drawn, seed=1).cache("/x"), ValueError, "after .map.., which draws anew"),
        (lambda p: p.rejection_sample(0.5).cache("/x"), ValueError, "after .rejection_sample"),
        (lambda p: p.cache("/x").cache("/y"), ValueError, "cache.. is called twice"),
        (lambda p: p.batch(1).cache("/x"), ValueError, "the shape ends a pipeline"),
    ],
)
def test_a_wrong_call_is_refused(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call(source())


def up_to(n):
    return ({"i": i} for i in range(n))


def test_a_position_of_a_cache_beyond_the_end_of_a_stream_is_an_error(tmp_path: Path) -> None:
    source = hs.from_function(up_to, 9).repeat(None).cache(tmp_path)
    Worker(source).epoch(0)
    intake = Worker(source).intakes[0]
    position = intake.chunk(Read(0, 0, intake.start(), 7))[1]
    shorter = Worker(hs.from_function(up_to, 4).cache(tmp_path)).intakes[0]
    with pytest.raises(DataError, match="stream 0 has ended before the 7 examples"):
        shorter.chunk(Read(0, 0, position, 7))
