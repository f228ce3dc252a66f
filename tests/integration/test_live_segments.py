"""Segments of a log that leave before their sequences have ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.chaos.proxy import proxy_of
from tests.examples import some
from tests.patience import PATIENCE_S, eventually
from tests.waiting import waits_end_with

from .processes import HERE, Process
from .serving import connect, kill_worker
from .test_live import Judge, live, produce, push, segments


def grow(sequence: Any, upto: int) -> None:
    while sequence.steps < upto:
        sequence.append({"x": float(sequence.steps)})


def test_a_segment_leaves_once_its_steps_are_there():
    with hs.run(segments(live(), batch_size=1)) as server, produce(server) as out:
        judge, sequence = Judge(), out.open("a", {"key": "a"}, version=4)
        with connect(server) as feed:
            for upto in (3, 6, 9):
                grow(sequence, upto)
                batch = next(feed)
                assert batch.length.tolist() == [3] and batch.last.tolist() == [False]
                assert batch.version.tolist() == [4] and batch.stale.tolist() == [False]
                assert 0 <= batch.age[0] < PATIENCE_S
                judge.train(batch)
            grow(sequence, 10)
            sequence.end()
            batch = next(feed)
            assert batch.length.tolist() == [1] and batch.last.tolist() == [True]
            judge.train(batch)
            out.close_log()
            assert list(feed) == []
    assert judge.next == {"a": 10}


def test_a_sequence_that_ends_where_a_segment_ended_has_no_further_one():
    with hs.run(segments(live(), batch_size=1)) as server, produce(server) as out:
        with connect(server) as feed:
            sequence = out.open("a", {"key": "a"})
            grow(sequence, 3)
            batch = next(feed)
            sequence.end()
            out.close_log()
            assert batch.last.tolist() == [False]
            batch.save_state("sum", batch.state("sum"))
            assert list(feed) == []


def test_a_batch_that_lacks_rows_says_how_many_are_ready():
    """Its producers have fewer sequences than it has rows, so it comes when the log is closed."""
    with hs.run(segments(live(), allow_small_batch=True)) as server, produce(server) as out:
        push(out, "a", 2)
        with connect(server) as feed:
            lacking = "1 of 2 rows are ready; it waits for its source of producers"
            with waits_end_with(lacking), pytest.raises(headrace.DeadlineExceeded, match=lacking):
                next(feed)
            out.close_log()
            assert next(feed).rows == 1


@pytest.mark.parametrize("options", [{"exact_last": True}, {"right": 1}])
def test_a_last_segment_is_known_where_one_step_more_is_waited_for(options: dict[str, Any]):
    with hs.run(segments(live(), batch_size=1, **options)) as server, produce(server) as out:
        with connect(server) as feed:
            sequence = out.open("a", {"key": "a"})
            grow(sequence, 6)
            lasts = []
            for _ in range(2):
                batch = next(feed)
                lasts += batch.last.tolist()
                batch.save_state("sum", batch.state("sum"))
                if len(lasts) == 1:
                    sequence.end()
    assert lasts == [False, True]


def test_the_lane_of_a_sequence_that_rests_goes_to_another_and_it_comes_back_with_its_state():
    pipeline = segments(live(), order="lanes")
    with hs.run(pipeline) as server, produce(server) as out, connect(server) as feed:
        judge, open_ = Judge(), {key: out.open(key, {"key": key}) for key in "abc"}
        keys = []
        for pairs in ("ab", "bc", "ac", "ab"):
            for key in pairs:
                grow(open_[key], open_[key].steps + 3)
            batch = next(feed)
            keys.append(sorted(batch.context["key"].tolist()))
            judge.train(batch)
        assert keys == [[b"a", b"b"], [b"b", b"c"], [b"a", b"c"], [b"a", b"b"]]


def test_an_idle_sequence_holds_no_place_of_the_capacity():
    pipeline = segments(live(), batch_size=1, capacity=1)
    with hs.run(pipeline) as server, produce(server) as out, connect(server) as feed:
        judge = Judge()
        for number in range(5):
            grow(out.open(f"idle-{number}", {"key": f"idle-{number}"}), 2)
        sequence = out.open("a", {"key": "a"})
        for upto in (3, 6):
            grow(sequence, upto)
            judge.train(next(feed))
        log = server.stats()["default"]["log"]
        assert log["open"] == 6


def test_an_aborted_sequence_ends_where_trainers_have_it():
    with hs.run(segments(live(), batch_size=1)) as server, produce(server) as out:
        with connect(server) as feed:
            sequence = out.open("a", {"key": "a"})
            grow(sequence, 9)
            batch = next(feed)
            sequence.abort()
            out.append({"x": [0.0], "key": "b"})
            out.close_log()
            batch.save_state("sum", batch.state("sum"))
            rest = [b.context["key"].tolist() for b in map(saved, feed)]
        # the log is applied only as far as a batch needs it
        assert rest == [[b"a"], [b"a"], [b"b"]] or rest == [[b"b"]]


def saved(batch: Any) -> Any:
    batch.save_state("sum", batch.state("sum"))
    return batch


def test_a_drained_feed_trains_what_it_has_read():
    with hs.run(segments(live(), batch_size=1)) as server, produce(server) as out:
        with connect(server) as feed:
            sequence = out.open("a", {"key": "a"})
            grow(sequence, 4)
            out.flush()
            saved(next(feed))
            feed.drain()
            rest = [b.length.tolist() for b in map(saved, feed)]
    assert rest in ([], [[1]])


def no_seven(example: dict[str, Any]) -> bool:
    return not example["key"].endswith(b"7")


DRAWN = {
    "arrival": {},
    "lanes": {"order": "lanes"},
    "context": {"left": 2, "right": 1, "stride": 2},
    "lanes with context": {"left": 2, "order": "lanes", "stride": 2},
}


@pytest.mark.parametrize("seed", range(some(5)))
def test_each_step_is_trained_once_in_order_whoever_dies(seed: int, tmp_path: Path):
    """Options, filters, ranks, partitions and workers are drawn; workers and producers die."""
    chance = random.Random(seed)
    options = DRAWN[[*DRAWN][seed % len(DRAWN)]]
    world, workers = chance.choice([0, 0, 2]), chance.choice([1, 2])
    judge = Judge(options.get("stride", 3), options.get("left", 0))
    durable: dict[str, int] = {}
    lives = [0] * workers
    source = live().filter(no_seven, columns=["key"]) if seed % 2 else live()
    pipeline = segments(source, batch_size=chance.choice([1, 2]), **options)

    def train(server: hs.Server, rank: int) -> None:
        given = {"rank": rank, "world_size": world, "run": 1} if world else {}
        with connect(server, **given) as feed:
            for batch in feed:
                judge.train(batch)

    state = tmp_path if chance.random() < 0.5 else None
    with (
        hs.run(pipeline, workers=workers, partitions=workers, state_dir=state) as server,
        contextlib.closing(proxy_of(server.address)) as proxy,
        ThreadPoolExecutor(3) as pool,
    ):
        trainers = [pool.submit(train, server, rank) for rank in range(world or 1)]
        out = headrace.produce(proxy.address, log="episodes", name="actor", timeout=PATIENCE_S)
        script = str(HERE / "producer.py")
        with Process(script, server.address, "other") as other, out:
            open_: dict[str, Any] = {}
            for number in range(60):
                if len(open_) < 6:
                    open_[f"{number}"] = out.open(f"{number}", {"key": f"{number}"})
                for key in chance.sample(sorted(open_), min(3, len(open_))):
                    sequence = open_[key]
                    grow(sequence, sequence.steps + chance.randrange(4))
                    if sequence.steps > chance.randrange(30):
                        durable[key] = sequence.steps
                        open_.pop(key).end()
                if number % 20 == 10:
                    worker = chance.randrange(workers)
                    kill_worker(server, worker, lives[worker])
                    lives[worker] += 1
                    proxy.cut()
                if number == 30:
                    other.wait_for("durable")
                    os.kill(other.pid, signal.SIGKILL)
            for key, sequence in open_.items():
                durable[key] = sequence.steps
                sequence.end()
            out.flush()
            out.close_log()
        for trainer in trainers:
            trainer.result(PATIENCE_S)
    if seed % 2:
        assert not [key for key in judge.next if key.endswith("7")]
        durable = {key: steps for key, steps in durable.items() if not key.endswith("7")}
    if world:  # the last rounds may be incomplete
        assert sum(judge.next.values()) > 0
        assert all(judge.next[key] <= steps for key, steps in durable.items())
    else:
        durable = {key: steps for key, steps in durable.items() if steps}
        assert {key: judge.next[key] for key in durable} == durable


@pytest.mark.parametrize("options", [{}, {"order": "lanes"}, {"order": "lanes", "pack": True}])
def test_a_feed_that_goes_back_to_a_snapshot_gets_the_same_batches(
    options: dict[str, Any], tmp_path: Path
):
    def trained(feed: Any, most: int) -> list[Any]:
        found = []
        for _, batch in zip(range(most), feed, strict=False):
            found.append((batch.original_key.tolist(), batch.sequences["x"].tolist()))
            saved(batch)
        return found

    pipeline = segments(live(), **options)
    with hs.run(pipeline, state_dir=tmp_path) as server, produce(server) as out:
        open_ = {key: out.open(key, {"key": key}) for key in "abcde"}
        for upto in range(1, 20):
            for n, key in enumerate(open_):
                if (upto + n) % 3:
                    grow(open_[key], upto)
        out.flush()
        with connect(server, prefetch=0) as feed:  # else the order depends on time
            trained(feed, 4)
            token = feed.snapshot()
            after = trained(feed, 5)
        for sequence in open_.values():
            grow(sequence, 25)
            sequence.end()
        out.close_log()
        with connect(server, resume=token, prefetch=0) as feed:
            again = trained(feed, 1000)
    assert again[: len(after)] == after and len(after) == 5


def test_segments_of_an_old_policy_are_left_out_and_what_follows_begins_anew():
    pipeline = segments(live(), batch_size=1, max_staleness=1)
    with hs.run(pipeline) as server, produce(server) as out, connect(server, prefetch=0) as feed:
        sequence = out.open("a", {"key": "a"}, version=1)
        grow(sequence, 6)
        batch = saved(next(feed))
        assert batch.sequence.tolist() == [0]
        feed.set_version(3)
        feed.set_version(2)  # no smaller one
        sequence.version = 2
        grow(sequence, 9)
        out.close_log()
        batch = next(feed)
        assert (batch.sequence.tolist(), batch.version.tolist()) == ([2], [2])
        assert batch.state("sum").tolist() == [0.0]
        saved(batch)
        assert list(feed) == []
        assert server.stats()["default"]["dropped"] == {"stale": 1}


def test_segments_of_an_old_policy_are_marked_where_that_is_asked_for():
    pipeline = segments(live(), batch_size=1, max_staleness=1, stale="mark")
    with hs.run(pipeline) as server, produce(server) as out, connect(server, prefetch=0) as feed:
        grow(out.open("a", {"key": "a"}, version=1), 6)
        assert saved(next(feed)).stale.tolist() == [False]
        feed.set_version(3)
        assert saved(next(feed)).stale.tolist() == [True]


def asked_for(example: dict[str, Any]) -> bool:
    return bool(example["key"].startswith(b"a"))


def log_of(server: hs.Server) -> dict[str, int]:
    log: dict[str, int] = server.stats()["default"]["log"]
    return log


def test_a_filter_of_context_leaves_sequences_out_before_they_have_ended(tmp_path: Path):
    """Those that it refuses hold no place, no file and no credit, in any life of the worker."""
    source = live(max_open=4, max_backlog=1 << 20).filter(asked_for, columns=["key"])
    pipeline = segments(source.select(["key", "x"]), batch_size=1, capacity=1)
    judge = Judge()
    with hs.run(pipeline, state_dir=tmp_path) as server, produce(server) as out:
        wanted, other = out.open("a", {"key": "a"}), out.open("b", {"key": "b"})
        with connect(server) as feed:
            grow(wanted, 3)
            judge.train(next(feed))
            for life in range(2):
                for _ in range(8):  # 4 MB in all, which is more than a backlog may have
                    other.extend({"x": np.zeros(1 << 16, np.float32)})
                    out.flush()
                out.append({"x": [0.0, 1.0], "key": "c"})
                grow(wanted, wanted.steps + 3)
                out.flush()
                judge.train(next(feed))
                # The commit is stored, and with it that the feed is beyond the steps of the other.
                assert eventually(lambda: log_of(server)["backlog_bytes"] < 1 << 19)
                kill_worker(server, 0, life)
            grow(wanted, 12)
            other.end()
            wanted.end()
            out.close_log()
            for batch in feed:
                judge.train(batch)
    assert judge.next == {"a": 12}
