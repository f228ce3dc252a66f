"""Lanes through whole servers: rows that stay, states that stay, and trainers that come and go."""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace import saving
from headrace.lanes import parts_of
from headrace.segments import SegmentBatch
from tests.patience import PATIENCE_S, eventually
from tests.waiting import waits_end_with

from .processes import HERE, Process
from .segment_streams import (
    CutProxy,
    Ledger,
    advanced,
    at_once,
    cells_of,
    chained,
    connect,
    full,
    of_counts,
    plain,
    save_all,
    train,
)
from .segment_streams import example as one_example
from .serving import arrived, kill_worker, serving, trainers_of

_PLACES = pytest.mark.parametrize("placement", ["server", "trainer"])


def lanes(examples: Any, placement: str = "trainer", **changes: Any) -> hs.Pipeline:
    options = {"order": "lanes", "state_placement": placement, "batch_size": 2, **changes}
    return chained(examples, **options)


def rewound(server: hs.Server) -> int:
    told: int = server.stats()["default"]["segments"]["rewound"]
    return told


# One trainer


@pytest.mark.parametrize(
    ("placement", "way"), [("server", "tcp"), ("trainer", "shared memory")], indirect=["way"]
)
def test_a_row_stays_with_its_sequence_and_then_takes_the_next(placement, way):
    """The lanes of a batch's rows ascend; a sequence keeps its lane, and is in every batch from
    its first segment to its last."""
    examples = of_counts([3, 1, 5, 2, 4, 1, 6, 2])
    ledger = Ledger(examples)
    lane_of: dict[bytes, int] = {}
    batches_of: dict[bytes, list[int]] = defaultdict(list)
    pipeline = full(examples, batch_size=3, order="lanes", state_placement=placement)
    with serving(pipeline) as server, connect(server, prefetch=2) as feed:
        assert feed.local == (way == "shared memory")
        for number, batch in enumerate(feed):
            lanes = batch.lane.tolist()
            assert sorted(set(lanes)) == lanes and set(lanes) <= {0, 1, 2}
            for (key, _), lane in zip(cells_of(batch), lanes, strict=True):
                assert lane_of.setdefault(key, lane) == lane
                batches_of[key].append(number)
            save_all(batch, ledger.check(batch))
    ledger.assert_complete()
    assert all(at == list(range(at[0], at[0] + len(at))) for at in batches_of.values())
    assert ledger.batches[0] == [(b"k000", 0), (b"k001", 0), (b"k002", 0)]
    assert [key for key, _ in ledger.batches[1]] == [b"k000", b"k003", b"k002"]


@pytest.mark.parametrize("framework", ["numpy", "tf", "torch", "jax"])
def test_a_state_that_stays_is_the_same_object_when_no_sequence_starts(framework):
    if framework != "numpy":
        pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    examples = of_counts([5, 5, 3])
    states = {"h": hs.zeros((4, 3), "float32")}
    pipeline = lanes(examples, initial_states=states)
    same = []
    before: Any = None
    with serving(pipeline) as server, connect(server, framework=framework, prefetch=1) as feed:
        for batch in feed:
            state = batch.state("h")
            assert type(state) is type(batch.sequences["steps"])
            assert plain(state)[:, 0, 0].tolist() == plain(batch.sequence).tolist()
            same.append(state is before or _same_memory(state, before))
            before = state + 1
            batch.save_state("h", before)
    # k002 begins after the fifth batch, in one lane: the other's is dropped after it.
    assert same == [False, True, True, True, True, False, True, True]


def _same_memory(one: Any, other: Any) -> bool:
    """Whether two torch tensors are one: a saved one comes back detached from its graph."""
    return hasattr(other, "data_ptr") and one.data_ptr() == other.data_ptr()


# Several


@pytest.mark.parametrize(
    ("placement", "trainers", "prefetch", "partitions", "workers"),
    [
        ("server", 2, 0, 1, 1),
        ("trainer", 2, 2, 2, 1),
        ("trainer", 3, 3, 4, 2),
        ("server", 3, 1, 1, 1),
    ],
)
def test_several_trainers_in_lanes_get_every_segment_once_and_in_order(
    placement, trainers, prefetch, partitions, workers
):
    examples = of_counts([1 + (5 * i) % 7 for i in range(50)])
    ledger = Ledger(examples)
    pipeline = full(examples, batch_size=3, capacity=30, order="lanes", state_placement=placement)
    with hs.run(pipeline, partitions=partitions, workers=workers) as server:

        def one() -> None:
            with connect(server, prefetch=prefetch) as feed:
                train(feed, ledger)

        at_once([one] * trainers)
        assert server.wait(PATIENCE_S)
        assert rewound(server) == 0
    ledger.assert_complete()


@pytest.mark.parametrize(
    ("placement", "way"),
    [("server", "shared memory"), ("trainer", "tcp"), ("trainer", "shared memory")],
    indirect=["way"],
)
def test_trainers_that_join_and_leave_while_it_runs_repeat_nothing(placement, way):
    """Each visit trains some batches and leaves, with others prefetched: whoever continues its
    sequences begins with the states that it had when it left."""
    examples = of_counts([1 + (5 * i) % 11 for i in range(80)])
    ledger = Ledger(examples)

    def visit(seed: int) -> None:
        chance = random.Random(seed)
        while True:
            with connect(server, prefetch=chance.randrange(4)) as feed:
                steps = chance.randint(1, 8)
                if train(feed, ledger, steps) < steps:
                    return

    with hs.run(lanes(examples, placement, capacity=24), partitions=2, workers=2) as server:
        at_once([lambda seed=seed: visit(seed) for seed in range(3)])
        assert server.wait(PATIENCE_S)
        assert rewound(server) == 0
    ledger.assert_complete()


# Leaving, and dying


@_PLACES
def test_who_leaves_in_good_order_or_by_an_exception_hands_over_where_it_stood(placement):
    examples = of_counts([6, 5, 4])
    ledger = Ledger(examples)

    def interrupted(server: hs.Server) -> None:
        with connect(server, prefetch=1) as feed:
            train(feed, ledger, 2)
            next(feed)
            raise InterruptedError

    with serving(lanes(examples, placement)) as server:
        with connect(server, prefetch=2) as feed:
            train(feed, ledger, 2)
        with pytest.raises(InterruptedError):
            interrupted(server)
        assert ledger.batches == [[(b"k000", i), (b"k001", i)] for i in range(4)]
        with connect(server) as feed:
            train(feed, ledger)
        assert rewound(server) == 0
    ledger.assert_complete()


def killed(placement: str, *arguments: str) -> tuple[Ledger, int, list[list[Any]]]:
    """A trainer saves three batches of two sequences, and is killed with a fourth in hand.

    Return the batches that another then trained, the number of rewound segments, and the first
    one's batches.
    """
    ledger = Ledger(of_counts([5, 5, 3, 2]))
    examples = [dict(known.told) for known in ledger.of.values()]
    with hs.run(lanes(examples, placement), lease_ttl_s=30) as server:
        arguments = (server.address, "--hold", "4", "--prefetch", "1", *arguments)
        with Process(str(HERE / "segment_trainer.py"), *arguments) as victim:
            victim.wait_for("holding")
            victim.kill()
            batches = [e["rows"] for e in victim.events if e["event"] == "batch"]
        eventually(
            lambda: server.stats()["default"]["redelivered"]
        )  # the server has noticed its death
        with connect(server) as feed:
            train(feed, ledger)
        repeated = rewound(server)
    return ledger, repeated, batches


def test_after_a_kill_states_at_the_server_go_on_from_the_last_save():
    ledger, repeated, batches = killed("server")
    saved = [(key.encode(), i) for rows in batches[:3] for key, i, _ in rows]
    ledger.assert_complete([*saved, *ledger.seen])
    assert repeated == 0


def test_after_a_kill_states_that_were_never_flushed_begin_anew_and_that_is_counted():
    ledger, repeated, batches = killed("trainer")
    assert [[key for key, _, _ in rows] for rows in batches] == [["k000", "k001"]] * 4
    ledger.assert_complete()
    assert repeated == 6


def test_after_a_kill_states_go_on_from_the_last_flush_and_what_comes_again_is_counted():
    ledger, repeated, batches = killed("trainer", "--flush", "2")
    flushed = [(key.encode(), i) for rows in batches[:2] for key, i, _ in rows]
    ledger.assert_complete([*flushed, *ledger.seen])
    assert ledger.batches[0] == [(b"k000", 2), (b"k001", 2)]
    assert repeated == 2


def test_a_sleeper_loses_its_lanes_and_who_got_them_is_not_disturbed_when_it_wakes(tmp_path):
    """1. A trainer saves two batches, flushes them, takes a third, and is stopped beyond its lease.
    2. Another gets its sequences as they were flushed.  The first wakes, and saves: it is told.
    3. The first gets other lanes or none, and the other goes on to the end.
    """
    ledger = Ledger(of_counts([6, 6]))
    examples = [dict(known.told) for known in ledger.of.values()]
    go_on = tmp_path / "go on"
    with hs.run(lanes(examples, capacity=2), lease_ttl_s=1.0) as server:
        arguments = (server.address, "--flush", "2", "--until", str(go_on), "--wait", "3")
        with Process(str(HERE / "segment_trainer.py"), *arguments) as sleeper:
            for _ in range(3):
                sleeper.wait_for("batch")
            sleeper.signal(signal.SIGSTOP)
            with connect(server) as feed:
                train(feed, ledger, 1)
                go_on.touch()
                sleeper.signal(signal.SIGCONT)
                assert "lease" in sleeper.wait_for("stale")["text"]
                train(feed, ledger)
            assert sleeper.finish() == 0, sleeper.output()
    flushed = [(key, i) for key in ledger.of for i in range(2)]
    ledger.assert_complete([*flushed, *ledger.seen])
    assert sum(event["event"] == "batch" for event in sleeper.events) == 3


def test_a_trainer_that_waits_gets_the_lanes_of_one_that_leaves(way):
    """Two examples fill one trainer's lanes; the other waits, and goes on where the first stood."""
    examples = of_counts([6, 6])
    ledger = Ledger(examples)
    with serving(lanes(examples)) as server:
        first = connect(server, prefetch=2)
        train(first, ledger, 3)
        with connect(server) as second:

            def leave_when_it_waits() -> None:
                eventually(lambda: any(t["requests"] for t in trainers_of(server)))
                first.close()

            steps, _ = at_once([lambda: train(second, ledger), leave_when_it_waits])
        assert steps == 3
        assert rewound(server) == 0
    ledger.assert_complete()


def test_a_cut_connection_makes_lanes_go_on_from_what_the_server_has(over_tcp):
    """1. Two batches are trained and flushed, a third is trained, and the connection is cut.
    2. The session is kept, or it is given up: then what was not flushed comes again.
    3. In either case the states are right and every segment is committed in the end.
    """
    ledger = Ledger(of_counts([6, 6, 4, 3]))
    examples = [dict(known.told) for known in ledger.of.values()]
    with serving(lanes(examples), lease_ttl_s=2.0) as server, CutProxy(server.address) as proxy:
        with headrace.connect(proxy.address, prefetch=0, timeout=PATIENCE_S) as feed:
            train(feed, ledger, 2)
            feed.flush_states()
            train(feed, ledger, 1)
            _ = feed.progress  # answered once the save is
            proxy.cut()
            stale = 0
            while True:
                try:
                    train(feed, ledger)
                    break
                except headrace.StaleLease:
                    stale += 1
            assert stale <= 1
        again = len(ledger.seen) - len(set(ledger.seen))
        # Repeated segments are those counted as rewound, and stale rows.
        assert rewound(server) <= again <= rewound(server) + 2 * stale
    assert set(ledger.seen) == {
        (k, i) for k, known in ledger.of.items() for i in range(known.count)
    }


@pytest.mark.parametrize("rank", [{}, {"rank": 0, "world_size": 1}])
def test_a_loop_that_is_interrupted_while_it_takes_a_batch_goes_on_with_the_right_states(
    rank: dict[str, Any], monkeypatch
):
    """A rank has batches of the other partition ahead, which still count."""
    ledger = Ledger(of_counts([6, 6, 6, 6]))
    examples = [dict(known.told) for known in ledger.of.values()]
    partitions = 1 + len(rank) // 2

    def interrupted(batch: SegmentBatch, *made_of: Any) -> None:
        raise KeyboardInterrupt

    with (
        serving(lanes(examples), partitions=partitions) as server,
        connect(server, prefetch=2, **rank) as feed,
    ):
        train(feed, ledger, 2)
        feed.flush_states()
        arrived(server, feed, 2)
        with monkeypatch.context() as patch:
            patch.setattr(SegmentBatch, "__init__", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(feed)
        train(feed, ledger)
        assert rewound(server) == server.stats()["default"]["redelivered"] == 0
    ledger.assert_complete()


def test_a_flush_is_stale_where_the_worker_dies_before_it_is_sent(monkeypatch):
    ledger = Ledger(of_counts([6, 6, 4, 3]))
    examples = [dict(known.told) for known in ledger.of.values()]

    def slow(*arguments: Any) -> Any:
        kill_worker(server)
        eventually(lambda: "worker-0-1" in server.pids)
        feed.stats()  # the answer of the next worker, with which the trainer has a session then
        return parts_of(*arguments)

    with hs.run(lanes(examples)) as server, connect(server) as feed:
        train(feed, ledger, 2)
        feed.flush_states()
        with monkeypatch.context() as patch:
            patch.setattr(saving, "parts_of", slow)
            with pytest.raises(headrace.StaleLease, match="states that the server has"):
                feed.flush_states()
        train(feed, ledger)
    ledger.assert_complete()


# Sizes


def test_states_of_fifty_megabytes_a_row_are_handed_over_and_gone_on_with():
    """The flush of two rows takes two messages, each with a row's 50 MB."""
    width = 12_500_000
    examples = of_counts([3, 3])
    pipeline = lanes(examples, initial_states={"big": hs.zeros((width,), "float32")})
    with serving(pipeline) as server:
        with connect(server) as feed:
            batch = next(feed)
            state = batch.state("big")
            assert state.shape == (2, width) and not state.any()
            state = np.arange(2 * width, dtype=np.float32).reshape(2, width)
            batch.save_state("big", state)
        with connect(server) as feed:
            batch = next(feed)
            assert batch.sequence.tolist() == [1, 1]
            assert np.array_equal(batch.state("big"), state)
            batch.save_state("big", state)
            batch = next(feed)
            assert batch.state("big") is state
            batch.save_state("big", state)
            assert next(feed, None) is None
        assert rewound(server) == 0


# Drain


@_PLACES
def test_a_drained_feed_of_lanes_finishes_what_was_read(placement):
    examples = [one_example(i, 9) for i in range(5)]
    ledger = Ledger(examples)
    pipeline = hs.from_examples(examples).repeat()
    shaped = pipeline.batch_sequences_with_states(
        input_key="key",
        input_sequences=["steps"],
        input_context=[],
        initial_states={"chain": "origin"},
        num_unroll=4,
        batch_size=2,
        capacity=6,
        order="lanes",
        state_placement=placement,
    )
    with serving(shaped) as server:
        with connect(server) as feed:
            train(feed, ledger, 4)
            feed.drain()
            feed.drain()
            train(feed, ledger)
        assert server.wait(PATIENCE_S)
        assert server.dropped["default"] == {}
    assert len(ledger.seen) % 3 == 0  # all three segments of each example that was begun


def test_the_deadline_of_a_trainer_without_lanes_says_who_has_them():
    examples = of_counts([4, 4])
    with serving(lanes(examples, capacity=2), lease_ttl_s=2.0) as server:
        with connect(server) as holder, connect(server) as waiting:
            batch = next(holder)
            with (
                waits_end_with("waits for save_state.*leased to trainer"),
                pytest.raises(headrace.DeadlineExceeded) as caught,
            ):
                next(waiting)
            number = next(t["trainer"] for t in trainers_of(server) if t["leases"])
            batch.save_state(
                "chain",
                np.array(
                    [
                        advanced(state, key, i)
                        for state, (key, i) in zip(
                            batch.state("chain").tolist(), cells_of(batch), strict=True
                        )
                    ],
                    np.int32,
                ),
            )
    text = str(caught.value)
    assert "save_state of 00000_of_00004:k000 and 1 more (batch 0)" in text, text
    assert f"leased to trainer {number} for " in text, text


@pytest.mark.parametrize(("world", "lanes", "warned"), [(2, 8, True), (2, 16, False), (0, 6, True)])
def test_a_trainer_is_warned_of_lanes_that_the_data_can_not_fill(
    world: int, lanes: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.arange(lanes * 6 + 1, dtype=np.uint16).tofile(tmp_path / "tokens")
    text = hs.read_tokens(tmp_path / "tokens", "uint16", lanes=lanes).batch_sequences_with_states(
        input_key="key",
        input_sequences=["tokens"],
        input_context=[],
        initial_states={},
        num_unroll=2,
        batch_size=4,
        order="lanes",
    )
    ranks = {"rank": 0, "world_size": world} if world else {}
    with (
        hs.run(text, partitions=2) as server,
        headrace.connect(server.address, timeout=PATIENCE_S, **ranks) as feed,
    ):
        assert next(feed).valid.sum() == min(4, lanes // (2 * max(1, world)))
    said = [one.getMessage() for one in caplog.records if "sequences for" in one.getMessage()]
    assert len(said) == warned
    assert not warned or f"{lanes} sequences for {max(1, world) * 8} lanes" in said[0]
