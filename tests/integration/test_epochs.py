"""Epochs, lengths and progress of feeds, by real servers and trainers."""

from __future__ import annotations

import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
import headrace_server as hs
from headrace_proto.schema import Field
from headrace_server.cli import main
from headrace_server.cli.pipelines import load
from tests.patience import PATIENCE_S
from tests.ports import free_port

from .processes import serve
from .serving import connect, in_segments, serving

EXAMPLES = [{"x": i} for i in range(11)]


def pipeline(epochs: int | None = 3, across: bool = False) -> hs.Pipeline:
    shuffled = hs.from_examples(EXAMPLES).shuffle(3).repeat(epochs, across_batches=across)
    return shuffled.batch(2, allow_smaller_final_batch=True)


Seen = list[tuple[int, list[list[int]]]]


def epochs_of(feed: headrace.Feed) -> Seen:
    seen = []
    for number, batches in feed.epochs():
        rows = []
        for batch in batches:
            assert batch.epoch == number
            rows.append(batch["x"].tolist())
        seen.append((number, rows))
    return seen


def test_a_loop_is_an_epoch_and_the_last_batch_is_committed_when_it_ends():
    with serving(pipeline(None), partitions=2) as server:
        with headrace.connect(server.address) as feed:
            assert feed, "though it has no length"
            for epoch in range(5):
                assert sorted(x for b in feed for x in b["x"].tolist()) == list(range(11))
                feed.commit()  # waits for the answers
                assert server.stats()["default"]["rows"] == 11 * (epoch + 1)


def test_an_epoch_ends_for_a_trainer_whose_next_batches_another_one_has_already():
    """All of epoch 0 is committed, and the other trainer holds all batches of epoch 1."""
    with serving(pipeline(2)) as server:
        with headrace.connect(server.address, prefetch=0) as one:
            first = iter(one)
            next(first)  # before the other trainer, whose requests reach all that is left
            with headrace.connect(server.address, prefetch=12) as two:
                assert sum(1 for _ in two) == 5
                assert list(first) == [], "the next batch, or the feed's end, is not waited for"
                assert sum(1 for _ in two) + sum(1 for _ in one) == 6


# Length


def walks_of(reader: hs.Pipeline, **options: Any) -> hs.Pipeline:
    """Cut walks into segments of two steps, in lanes without states."""
    given = {"input_key": None, "initial_states": {}, "order": "lanes"}
    return in_segments(reader, **{**given, **options})


def test_the_length_of_a_feed_of_segments_is_known_where_lengths_are(tmp_path):
    """In the lanes of a trainer, in those of ranks, and in rounds of ranks without lanes."""
    steps = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    walks = [{"key": f"{i}", "x": np.arange(n, dtype=np.float32)} for i, n in enumerate(steps)]
    columns = pa.table({"key": [w["key"] for w in walks], "x": [w["x"] for w in walks]})
    with pa.ipc.new_file(tmp_path / "walks.arrow", columns.schema) as writer:
        writer.write_table(columns, max_chunksize=4)
    offsets = np.cumsum([0, *steps])
    x = np.concatenate([w["x"] for w in walks])
    np.savez(tmp_path / "walks.npz", key=[w["key"] for w in walks], x=x, at=offsets)
    np.arange(1 + 40, dtype=np.uint16).tofile(tmp_path / "text.bin")
    sources = {
        "examples": hs.from_examples(walks),
        "arrow": hs.read_arrow(str(tmp_path / "walks.arrow")),
        "npz": hs.read_npz(str(tmp_path / "walks.npz"), ragged={"x": "at"}),
        "indexed": hs.from_indexed(walks, lengths=steps),
        "both": hs.from_examples(walks).skip(2).concat(hs.from_examples(walks)),
    }
    tokens = hs.read_tokens(str(tmp_path / "text.bin"), dtype="uint16", lanes=3)
    feeds = {
        "tokens": walks_of(tokens, input_sequences=["tokens"]),
        "arrival": in_segments(sources["arrow"].shuffle(1)),
        "phased": walks_of(sources["npz"].shuffle(window=3, seed=1), phase="random"),
        "packed": walks_of(sources["arrow"].with_origin(), pack=True, num_unroll=4),
        "epochs": walks_of(sources["examples"].shuffle(2).repeat(3, across_batches=False)),
        **{name: walks_of(source.shuffle(7)) for name, source in sources.items()},
    }
    with serving(feeds, partitions=2, workers=2) as server, ThreadPoolExecutor(2) as pool:
        for name in feeds:
            ranks = (0, 1) if name in ("arrival", "packed", "both") else (-1,)
            known = [*pool.map(partial(loops_of, server, name, len(ranks)), ranks)]
            assert all(length == batches > 0 for loops in known for length, batches in loops), name
            assert len({*map(str, known)}) == 1, "all ranks have the same number"


_COUNTED = """
import headrace_server as hs

rows = hs.read_jsonl("rows.jsonl", {"x": hs.sequence("float32")}).shuffle(seed=3)
kept = rows.filter(lambda row: len(row["x"]) % 3 > 0).map(lambda row: {"x": row["x"][1:]})
plain = kept.repeat(2, across_batches=False).batch(4, dynamic_pad=True)
lanes = kept.batch_sequences_with_states(
    None, ["x"], [], None, {}, num_unroll=2, batch_size=3, order="lanes", allow_small_batch=True
)
"""


def test_what_check_counts_in_advance_is_the_length_of_feeds_with_any_stages_that_keep_rows_apart(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = "".join(json.dumps({"x": [1.0] * (2 + i % 7)}) + "\n" for i in range(41))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "feeds.py").write_text(_COUNTED)
    names = ["feeds.py:plain", "feeds.py:lanes"]
    feeds = load(names)
    with serving(feeds, partitions=2) as server:
        for name in feeds:
            with connect(server, feed=name) as feed:
                with pytest.raises(TypeError, match=r"filter may .*: headrace check --count"):
                    len(feed)
    assert main(["check", *names, "--count", "--state-dir", "state"]) == 0
    with serving(feeds, partitions=2, state_dir="state") as server:
        for name in feeds:
            ((length, batches),) = loops_of(server, name, 0, -1)
            assert length == batches > 0


class Walks(hs.IndexedSource):
    """A source of the user's, which knows how long its walks are, or fails to."""

    def __init__(self, opening: Any, fails: bool) -> None:
        self.fields = {"x": Field("float32", (None,))}
        self.length, self._fails = 9, fails

    def take(self, rows: Any) -> hs.Chunk:
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        lengths = numbers % 4 + 1
        offsets = np.cumsum([0, *lengths])
        x = hs.Ragged.from_values(np.zeros(offsets[-1], np.float32), offsets)
        return hs.Chunk.of({"x": x}, numbers, "walks")

    def steps_of(self, column: str) -> np.ndarray:
        if self._fails:
            raise OSError(f"no index of {column}")
        return np.arange(self.length) % 4 + 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_source_of_the_users_may_know_how_long_its_sequences_are(fails):
    with serving(walks_of(hs.read(f"{__name__}:Walks", fails=fails))) as server:
        if not fails:
            ((length, batches),) = loops_of(server, "default", 0, -1)
            assert length == batches > 0
            return
        with connect(server) as feed:
            with pytest.raises(TypeError, match=r"no length: to count .* raised OSError: no index"):
                len(feed)
            assert sum(1 for _ in feed), "the feed goes on"


def test_the_length_is_asked_again_of_a_server_that_comes_back_with_fewer_workers(tmp_path):
    text = "hs.from_examples([{'x': i} for i in range(40)]).batch(4)"
    (tmp_path / "feeds.py").write_text(f"import headrace_server as hs\nfeed = {text}\n")
    options = ["--partitions", "2", "--bind", f"tcp://127.0.0.1:{free_port()}", "--workers"]
    first, address = serve(tmp_path, "feeds.py:feed", *options, "2")
    with (
        first,
        headrace.connect(address, timeout=PATIENCE_S) as feed,
        ThreadPoolExecutor(1) as pool,
    ):
        first.kill()
        length = pool.submit(len, feed)
        again, _ = serve(tmp_path, "feeds.py:feed", *options, "1")
        with again:
            assert length.result(PATIENCE_S) == 10


def loops_of(server: hs.Server, name: str, world: int, rank: int) -> list[tuple[int, int]]:
    """Return how long each loop over a feed was said to be, and was."""
    place = {"rank": rank, "world_size": world} if rank >= 0 else {}
    found = []
    with connect(server, feed=name, **place) as feed:
        for _ in range(3 if name == "epochs" else 1):
            length, batches = len(feed), 0
            for batch in feed:
                batches += 1
                for state in feed.states:
                    batch.save_state(state, batch.state(state))
            found.append((length, batches))
    return found


@pytest.mark.parametrize("segmented", [False, True])
def test_a_feed_that_ends_without_a_batch_logs_the_rows_that_it_drops(segmented, capfd):
    pipeline, option = hs.from_examples(EXAMPLES).batch(12), "allow_smaller_final_batch=True"
    if segmented:
        examples = [{"k": f"{i}", "x": [1.0]} for i in range(11)]
        pipeline, option = segments_of(examples), "allow_small_batch=True"
    with serving(pipeline) as server:
        with headrace.connect(server.address) as feed:
            assert not list(feed)
        assert server.wait(PATIENCE_S)
    logged = capfd.readouterr().err
    assert "'default' ends without a batch, and drops its rows: 11 as remainder" in logged
    assert f"give a smaller batch_size or fewer partitions, or {option}" in logged


def segments_of(examples: list[dict[str, Any]]) -> hs.Pipeline:
    """Cut examples into segments of which 12 make a batch."""
    return hs.from_examples(examples).batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((), "float32")},
        num_unroll=1,
        batch_size=12,
        allow_small_batch=False,
    )


def test_drain_ends_the_count_of_epochs_for_all_trainers():
    with serving(pipeline(None), partitions=2) as server, ThreadPoolExecutor(1) as pool:
        with headrace.connect(server.address) as feed, headrace.connect(server.address) as other:
            theirs = pool.submit(epochs_of, other)
            loops = feed.epochs()
            first = [(number, list(batches)) for number, batches in itertools.islice(loops, 2)]
            feed.drain()
            numbers = [number for number, _ in [*first, *((n, list(b)) for n, b in loops)]]
            assert numbers == [number for number, _ in theirs.result(PATIENCE_S)]
            assert numbers == list(range(len(numbers))) and len(numbers) < 10_000


def committed(feed: headrace.Feed) -> tuple[int, int, int]:
    feed.commit()  # waits for the answers
    progress = feed.progress
    return progress.batches, progress.rows, progress.epoch


@pytest.mark.parametrize("across", [True, False])
def test_progress_counts_the_commits_of_all_trainers_over_a_restart(tmp_path, across):
    state = tmp_path / "state"
    with serving(pipeline(across=across), state_dir=state) as server:
        with connect(server, prefetch=0) as feed, connect(server, prefetch=0) as other:
            assert committed(feed) == (0, 0, 0)
            rows = sum(batch.rows for batch in islice(iter(feed), 3)) + next(other).rows
            other.commit()
            assert committed(feed) == (4, rows, 0)
            assert feed.progress.epochs == 3 and 0.2 < feed.progress.fraction < 0.25
    with serving(pipeline(across=across), state_dir=state) as server:
        with connect(server) as feed:
            assert committed(feed) == (4, rows, 0)
            seen = []
            while (batch := next(feed, None)) is not None:
                rows += batch.rows
                number, total, epoch = committed(feed)
                assert total == rows
                seen.append((number, epoch))
            borders = (6, 11) if across else (6, 12)
            last = seen.pop()
            assert seen == [(n, sum(n >= b for b in borders)) for n in range(5, last[0])]
            assert str(feed.progress) == f"epoch 3 of 3: 33 rows in {last[0]} batches, 100%"


def even(row: Any) -> bool:
    return bool(row["k"] % 2 == 0)


def ragged(row: Any) -> Any:
    return {"n": row["x"].astype("i8")}


LONG = hs.from_examples(
    [{"k": k, "x": [1.0] * (3 + k % 5)} for k in range(200)],
    {"k": hs.scalar("int64"), "x": hs.sequence("float32")},
)
EVEN = LONG.filter(even).repeat(2)
KEYED = hs.from_examples([{"key": f"{k}", "x": [1] * (3 + k % 5)} for k in range(200)])


@pytest.mark.parametrize(
    ("shaped", "near", "workers"),
    [
        (EVEN.bucket_by_sequence_length("x", 4, [5], dynamic_pad=True), 0.1, 2),
        (LONG.map(ragged, schema={"n": hs.sequence("int64")}).unbatch().batch(10), 0.05, 1),
        (LONG.select(["x"]).pack(16, 2), 0.15, 2),
        (in_segments(KEYED, batch_size=4, capacity=16), 0.1, 1),
        (in_segments(KEYED, batch_size=4, order="lanes"), 0.1, 2),
    ],
    ids=["buckets", "unbatch", "pack", "arrival", "lanes"],
)
def test_the_fraction_is_that_of_the_examples(shaped, near, workers, tmp_path):
    """It grows with the batches of each life, for any shape, and goes on after a restart."""
    with serving(shaped) as server, connect(server) as feed:
        total = sum(saved(batch) for batch in feed)
    done = 0
    for stop in (0.4, 1.1):
        told = []
        with serving(shaped, workers=workers, partitions=2, state_dir=tmp_path) as server:
            with connect(server, prefetch=0) as feed:
                for batch in feed:
                    done += saved(batch)
                    feed.commit()
                    told.append(feed.progress.fraction)
                    assert abs(told[-1] - done / total) < near, (done, total)
                    if told[-1] > stop:
                        break
                else:
                    assert feed.progress.fraction == 1
        assert max(a - b for a, b in itertools.pairwise(told[1:])) < 0.02


def saved(batch: Any) -> int:
    """Save the states of a batch, if it has any; return its number of rows."""
    if isinstance(batch, headrace.SegmentBatch):
        batch.save_state("s", batch.state("s"))
    return batch.rows


def test_a_trainer_that_waits_for_answers_waits_for_no_other_commits_and_no_batch(monkeypatch):
    """Neither do commits gather any longer, nor do answers wait for a batch to leave with."""
    monkeypatch.setattr("headrace_server.worker.commits._GATHER_S", 10 * PATIENCE_S)
    monkeypatch.setattr("headrace_server.worker.outbox._MOMENT_S", 10 * PATIENCE_S)
    segments = in_segments(hs.from_examples([{"key": f"{i}", "x": [1]} for i in range(4)]))
    with serving({"plain": pipeline(across=True), "segments": segments}) as server:
        with connect(server, feed="plain", prefetch=0) as feed:
            next(feed)
            assert committed(feed) == (1, 2, 0)
        with connect(server, feed="segments", prefetch=0) as feed:
            batch = next(feed)
            batch.save_state("s", batch.state("s"))
            assert feed.progress.batches == 1
