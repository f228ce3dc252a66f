"""Live data: producers push to a log while trainers train, and nothing durable is lost."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_server.files.journal_file import MARK_AT
from tests.chaos.proxy import proxy_of
from tests.examples import some
from tests.patience import PATIENCE_S, eventually

from .serving import connect, kill_worker

FEATURES = {"x": hs.sequence("float32"), "key": hs.scalar("bytes")}
SCHEMA = {"x": hs.Field("float32", (None,)), "key": hs.Field("bytes", ())}


def live(**options: Any) -> hs.Pipeline:
    return hs.live("episodes", FEATURES, **options)


def segments(source: hs.Pipeline, **options: Any) -> hs.Pipeline:
    given: dict[str, Any] = {
        "input_key": "key",
        "input_sequences": ["x"],
        "input_context": ["key"],
        "initial_states": {"sum": hs.zeros((), "float32")},
        "num_unroll": 3,
        "batch_size": 2,
    }
    return source.batch_sequences_with_states(**{**given, **options})


def produce(server: hs.Server, name: str = "actor", **options: Any) -> headrace.Producer:
    options = {"log": "episodes", "timeout": PATIENCE_S, **options}
    return headrace.produce(server.address, name=name, **options)


def push(out: headrace.Producer, key: str, steps: int) -> None:
    sequence = out.open(key, {"key": key})
    for t in range(steps):
        sequence.append({"x": float(t)})
    sequence.end()


def pushed(out: headrace.Producer, life: int, count: int) -> dict[str, int]:
    """Push sequences of five steps; return these, which are durable."""
    keys = [f"{life}-{number}" for number in range(count)]
    for key in keys:
        push(out, key, 5)
    out.flush()
    return dict.fromkeys(keys, 5)


class Judge:
    """Judges commits: trainers commit each step once, in order, and from the state before it.

    Step t of a sequence has the value t, and the state is the sum of the steps before.
    """

    def __init__(self, stride: int = 3, left: int = 0) -> None:
        self.stride, self.left = stride, left
        self.next: dict[str, int] = defaultdict(int)  # by key, the first step that is not trained
        self.ended: dict[str, int] = {}
        self._lock = threading.Lock()

    def train(self, batch: Any) -> None:
        """Check the rows of a batch, and save their states."""
        saved = batch.state("sum").copy()
        with self._lock:
            for row in np.flatnonzero(batch.valid).tolist():
                key, length = batch.context["key"][row].decode(), int(batch.length[row])
                first = int(batch.sequence[row]) * self.stride
                own = batch.sequences["x"][row][self.left :][:length].tolist()
                assert own == [float(t) for t in range(first, first + length)], (key, first, own)
                before = batch.sequences["x"][row][: self.left].tolist()
                assert before == [float(max(0, t)) for t in range(first - self.left, first)]
                assert saved[row] == sum(range(first)), (key, first, saved[row])
                steps = length if batch.last[row] else min(length, self.stride)
                saved[row] += sum(range(first, first + steps))
        batch.save_state("sum", saved)
        with self._lock:
            for row in np.flatnonzero(batch.valid).tolist():
                key, length = batch.context["key"][row].decode(), int(batch.length[row])
                first = int(batch.sequence[row]) * self.stride
                covered = self.next[key]
                assert first <= covered < first + length or not first, (key, first, covered)
                assert self.ended.get(key) is None, f"{key} has ended"
                self.next[key] = first + length
                if batch.last[row]:
                    self.ended[key] = first + length

    def check(self, durable: dict[str, int]) -> None:
        """Each step that was acknowledged is trained."""
        for key, steps in durable.items():
            assert self.next[key] >= steps, (key, steps, self.next[key])


def test_a_feed_trains_sequences_as_they_end_and_ends_when_the_log_is_closed():
    with hs.run(segments(live())) as server, produce(server) as out:
        trained = Judge()
        with connect(server) as feed:
            batches = iter(feed)
            push(out, "a", 4)
            push(out, "b", 2)
            trained.train(next(batches))  # before any more has come
            push(out, "c", 1)
            out.append({"x": [0.0, 1.0], "key": "whole"})
            out.close_log()
            for batch in batches:
                trained.train(batch)
        trained.check({"a": 4, "b": 2, "c": 1, "whole": 2})
        assert out.sequences == {}


def test_steps_that_gather_share_items_and_those_that_were_sent_stay_as_they_are():
    steps, keys = 1500, ["a", "b", "c"]
    with hs.run(segments(live(), num_unroll=50)) as server, produce(server) as out:
        open_ones = [out.open(key, {"key": key}) for key in keys]
        for t in range(steps):
            if t in (500, 1000):  # its owner may have stored what has no answer
                kill_worker(server, 0, t // 500 - 1)
            for one in open_ones:
                assert one.append({"x": float(t)}) == t
        for one in open_ones:
            one.end()
        out.close_log()
        assert 2 * len(keys) < out.stored < steps
        trained = Judge(stride=50)
        with connect(server) as feed:
            for batch in feed:
                trained.train(batch)
    trained.check(dict.fromkeys(keys, steps))
    assert trained.next == dict.fromkeys(keys, steps)


def test_a_later_process_takes_over_and_the_older_one_is_refused():
    with hs.run(segments(live())) as server, produce(server) as older:
        sequence = older.open("a", {"key": "a"})
        sequence.append({"x": 0.0})
        older.flush()
        with produce(server) as later:
            assert later.sequences == {"a": 1}
            again = later.open("a", {"key": "a"})
            assert again.append({"x": 1.0}) == 1
            again.end()
            later.flush()
            with pytest.raises(headrace.FeedInUse, match="taken over"):
                eventually(lambda: sequence.append({"x": 9.0}) and False)
            older._end()


def test_a_lost_server_ends_a_wait_and_the_same_producer_goes_on_when_it_is_back():
    with hs.run(segments(live())) as server:
        proxy = proxy_of(server.address)
        out = headrace.produce(proxy.address, log="episodes", name="actor", timeout=PATIENCE_S)
        with contextlib.closing(proxy), out:
            push(out, "a", 2)
            out.flush()
            sequence = out.open("b", {"key": "b"})
            proxy.drop("up")
            sequence.append({"x": 0.0})
            with pytest.raises(headrace.DeadlineExceeded, match="s for answers in log"):
                out.flush(timeout=0.2)
            with pytest.raises(headrace.ConnectionLost, match="nothing was heard of tcp://"):
                out.flush(timeout=10)
            proxy.heal()
            sequence.end()
            out.flush()
            assert out.stored == 7


def test_a_full_log_gives_no_place_and_no_credit_until_feeds_go_on():
    with hs.run(segments(live(max_open=1))) as server, produce(server) as out:
        first = out.open("a", {"key": "a"})
        with pytest.raises(headrace.DeadlineExceeded, match="s for a place in log"):
            out.open("b", {"key": "b"}, timeout=0.2)
        (feed,) = server.stats().values()
        assert feed["log"]["wanting"] == 1
        first.end()
        out.open("b", {"key": "b"}).abort()


def numbers(batch: Any) -> list[int]:
    """Return the first values of a batch of whole examples."""
    return batch["x"][:, 0].astype(int).tolist()


def batched(**options: Any) -> hs.Pipeline:
    return live(**options).batch(2, dynamic_pad=True, allow_smaller_final_batch=True)


def test_a_whole_example_may_have_no_steps_or_columns_of_several_lengths():
    features = {**FEATURES, "y": hs.sequence("int64")}
    pipeline = hs.live("episodes", features).batch(3, dynamic_pad=True)
    with hs.run(pipeline) as server, produce(server) as out, connect(server) as feed:
        for x, y in (([], []), ([1.0], [1]), ([1.0, 2.0], [3])):
            out.append({"x": x, "key": "a", "y": y})
        batch = next(feed)
        assert batch["x"].tolist() == [[0, 0], [1, 0], [1, 2]]
        assert batch["y"].tolist() == [[0], [1], [3]] and batch["key"].tolist() == [b"a"] * 3


def test_a_feed_that_goes_back_to_a_snapshot_gets_the_same_batches_again(tmp_path: Path):
    with hs.run(batched(), state_dir=tmp_path) as server, produce(server) as out:
        for number in range(12):
            out.append({"x": [float(number)], "key": "a"})
        out.flush()
        with connect(server) as feed:
            before = [numbers(next(feed)) for _ in range(2)]
            token = feed.snapshot()
            after = [numbers(next(feed)) for _ in range(3)]
        for number in range(12, 14):
            out.append({"x": [float(number)], "key": "a"})
        out.close_log()
        with connect(server, resume=token) as feed:
            again = [numbers(batch) for batch in feed]
    assert before == [[0, 1], [2, 3]] and after == [[4, 5], [6, 7], [8, 9]]
    assert again == [[k, k + 1] for k in range(4, 14, 2)]


def test_a_log_ends_in_order_and_keeps_what_snapshots_hold_without_the_views(tmp_path: Path):
    partition = tmp_path / "logs" / "episodes" / "0"
    with hs.run(batched(), state_dir=tmp_path) as server, produce(server) as out:
        for number in range(4):
            out.append({"x": [float(number)], "key": "a"})
        out.flush()
        with connect(server) as feed:
            next(feed)
            token = feed.snapshot()
            next(feed)
    assert (partition / "0000000001.log").read_bytes()[MARK_AT:].startswith(b"HRCLOSED")
    (partition / "views.json").unlink()
    (held,) = json.loads((partition / "holds.json").read_text())
    assert held == f"snapshot default/{token['snapshot']}"
    with hs.run(batched(), state_dir=tmp_path) as server, connect(server, resume=token) as feed:
        assert numbers(next(feed)) == [2, 3]
    assert held in json.loads((partition / "holds.json").read_text())


def test_many_steps_are_sent_as_several_items():
    with hs.run(segments(live())) as server, produce(server) as out:
        sequence = out.open("many", {"key": "a"})
        out.flush()
        before, steps = out.stored, 3 << 20
        assert sequence.extend({"x": np.zeros(steps, np.float32)}) == 0
        out.flush()
        assert out.stored == before + 4 and out.sequences["many"] == sequence.steps == steps
        sequence.abort()


def test_feeds_read_one_log_each_at_its_own_pace(tmp_path: Path):
    feeds = {"one": batched(), "two": live().map(dict, schema=SCHEMA).batch(3, dynamic_pad=True)}
    with hs.run(feeds, state_dir=tmp_path) as server:
        with produce(server) as out, connect(server, feed="one") as one:
            for number in range(6):
                out.append({"x": [float(number)], "key": "a"})
            assert [numbers(next(one)) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
            kill_worker(server)
            out.close_log()
            assert list(one) == []
        with connect(server, feed="two") as two:
            assert [numbers(batch) for batch in two] == [[0, 1, 2], [3, 4, 5]]
        assert server.stats()["two"]["log"]["producers"] == 0


def test_producers_reach_the_partitions_of_all_servers_that_share_a_feed():
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(hs.run(segments(live()), partitions=3, share=(index, 2)))
            for index in range(2)
        ]
        addresses = [server.address for server in servers]
        with pytest.raises(ValueError, match="Give the addresses of all servers"):
            produce(servers[0])
        given = {"log": "episodes", "timeout": PATIENCE_S}
        out = stack.enter_context(headrace.produce(addresses[::-1], name="actor", **given))
        trained, durable = Judge(), pushed(out, 0, 12)
        for server in servers:  # each has keys
            eventually(lambda: server.stats()["default"]["log"]["bytes"] > 1000)  # noqa: B023
        kill_worker(servers[1])
        durable |= pushed(out, 1, 12)
        out.close_log()
        with headrace.connect(addresses, timeout=PATIENCE_S) as feed:
            for batch in feed:
                trained.train(batch)
        trained.check(durable)


def test_a_sequence_without_news_ends_and_its_producer_learns_that():
    pipeline = segments(live(idle_timeout_s=0.3), batch_size=1)
    with hs.run(pipeline) as server, produce(server) as out:
        sequence = out.open("a", {"key": "a"})
        sequence.append({"x": 0.0})
        with connect(server) as feed:
            assert next(feed).length.tolist() == [1]
        with pytest.raises(headrace.DataError, match="idle for idle_timeout_s"):
            eventually(lambda: sequence.append({"x": 1.0}) and out.flush())


@pytest.mark.parametrize("seed", range(some(6)))
def test_any_stages_and_shape_train_each_example_of_a_log_once(seed: int):
    """Two stages and a shape, drawn; workers die, and ranks train where the draw has them."""
    chance = random.Random(seed)
    stages = chance.sample(["map", "filter", "select", "shuffle", "mix"], 2)
    shape, ranks = chance.choice(["segments", "batch", "bucket", "pack"]), chance.choice([0, 2])
    source = live()
    if "shuffle" in stages:
        source = source.shuffle(seed=seed, window=4)
    if "mix" in stages:
        other = hs.from_examples([{"x": [0.0], "key": b"other"}] * 3, FEATURES)
        source = hs.mix({"live": source, "file": other}, {"live": 1, "file": 1})
    if "map" in stages:
        source = source.map(dict, schema=SCHEMA)
    if "filter" in stages:
        source = source.filter(lambda example: bool(len(example["x"])))
    if "select" in stages:
        source = source.select(["x", "key"])
    sizes = {"batch_size": 2}
    pipeline = {
        "segments": lambda: segments(source, input_key=None),
        "batch": lambda: source.batch(**sizes, dynamic_pad=True, allow_smaller_final_batch=True),
        "bucket": lambda: source.bucket_by_sequence_length(
            "x", **sizes, bucket_boundaries=[3], dynamic_pad=True,
            allow_smaller_final_batch=True,
        ),
        "pack": lambda: source.map(
            lambda row: {"x": row["x"]}, schema={"x": hs.Field("float32", (None,))}
        ).pack(8, 2, allow_smaller_final_batch=True),
    }[shape]()  # fmt: skip
    total, world = 30, ranks or 1
    seen: list[int] = []

    def train(server: hs.Server, rank: int) -> None:
        given = {"rank": rank, "world_size": ranks, "run": 1} if ranks else {}
        with connect(server, **given) as feed:
            for batch in feed:
                if shape == "segments":
                    fresh = batch.valid & (batch.sequence == 0)
                    batch.save_state("sum", batch.state("sum"))
                    values = batch.sequences["x"][fresh][:, 0]
                elif shape == "pack":
                    first = batch["positions"][batch["segment_ids"] > 0] == 0
                    values = batch["x"][batch["segment_ids"] > 0][first]
                else:
                    values = batch["x"][:, 0]
                seen.extend(values.astype(int).tolist())

    with hs.run(pipeline, workers=2, partitions=2) as server, ThreadPoolExecutor(3) as pool:
        trainers = [pool.submit(train, server, rank) for rank in range(world)]
        with produce(server) as out, produce(server, "other") as other:
            for number in range(1, total + 1):
                steps = [float(number)] * chance.randrange(1, 6)
                if number % 5 == 0:
                    out.append({"x": steps, "key": str(number)})
                else:
                    sequence = (out, other)[number % 2].open(str(number), {"key": str(number)})
                    sequence.extend({"x": steps})
                    sequence.end()
                if number == total // 2:
                    kill_worker(server, chance.randrange(2))
            other.flush()
            out.close_log()
        for trainer in trainers:
            trainer.result(PATIENCE_S)
    left_out = 2 * 2 * world if ranks else 0  # of the last round of each partition
    counts = Counter(one for one in seen if one)
    assert set(counts.values()) == {1}
    assert total - left_out <= len(counts) <= total
