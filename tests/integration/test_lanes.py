"""Lanes through whole servers: rows that stay, states that stay, and trainers that come and go."""

from __future__ import annotations

import contextlib
import itertools
import signal
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace.batches.segments import SegmentBatch
from headrace.connection.batch_memory import Blocks
from tests.patience import eventually

from .processes import trainer
from .segment_streams import (
    Ledger,
    chained,
    connect,
    of_counts,
    plain,
    train,
)
from .serving import arrived, kill_worker, serving


def lanes(examples: Any, placement: str = "trainer", **changes: Any) -> hs.Pipeline:
    options = {"order": "lanes", "state_placement": placement, "batch_size": 2, **changes}
    return chained(examples, **options)


def rewound(server: hs.Server) -> int:
    told: int = server.stats()["default"]["segments"]["rewound"]
    return told


# One trainer


@pytest.mark.parametrize("framework", ["numpy", "tf", "torch", "jax"])
def test_a_state_that_stays_is_the_same_object_when_no_sequence_starts(framework):
    if framework != "numpy":
        pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    examples = of_counts([2, 5, 4, 1])
    states = {"h": hs.zeros((4, 3), "float32"), "origin": "origin", "key": "key"}
    pipeline = lanes(examples, initial_states=states, batch_size=3)
    same = []
    before: Any = None
    saved: Any = None
    with serving(pipeline) as server, connect(server, framework=framework, prefetch=1) as feed:
        for batch in feed:
            state, numbers = batch.state("h"), plain(batch.sequence)
            assert type(state) is type(batch.sequences["steps"])
            assert (plain(state) == numbers[:, None, None]).all()
            origins = 1000 + plain(batch.context["label"]) + numbers
            assert plain(batch.state("origin")).tolist() == origins.tolist()
            assert plain(batch.state("key")).tolist() == plain(batch.original_key).tolist()
            assert before is None or (plain(before) == saved).all()  # it was not written to
            same.append(state is before or _same_memory(state, before))
            before = state + 1
            saved = plain(before).copy()
            batch.save_state("h", before)
            batch.save_state("origin", batch.state("origin") + 1)
            batch.save_state("key", batch.state("key"))
    # k003 takes lane 0 for the third batch; then lanes 1 and 2 are left, and then lane 1.
    assert same == [False, True, False, False, False]


def _same_memory(one: Any, other: Any) -> bool:
    """Whether two torch tensors are one: a saved one comes back detached from its graph."""
    return hasattr(other, "data_ptr") and one.data_ptr() == other.data_ptr()


# Leaving, and dying


def test_states_are_flushed_when_an_exception_leaves_the_feed_which_they_do_not_hide():
    ledger = Ledger(of_counts([5, 5, 3, 2]))
    with serving(lanes(ledger.examples)) as server:
        feed = connect(server, prefetch=0)
        train(feed, ledger, 2)
        next(feed)
        with pytest.raises(RuntimeError, match="mine"), feed:
            raise RuntimeError("mine")
        with connect(server) as feed:
            train(feed, ledger)
        assert rewound(server) == 0
    ledger.assert_complete()


def test_after_a_kill_states_go_on_from_the_last_flush_and_what_comes_again_is_counted():
    """A trainer saves three batches, of which it flushes two, and is killed with a fourth."""
    ledger = Ledger(of_counts([5, 5, 3, 2]))
    with hs.run(lanes(ledger.examples), lease_ttl_s=30) as server:
        options = "--hold", "4", "--prefetch", "1", "--flush", "2"
        with trainer(server.address, *options) as victim:
            victim.wait_for("holding")
            victim.kill()
            batches = [e["rows"] for e in victim.events if e["event"] == "batch"]
        # the server has noticed its death
        eventually(lambda: server.stats()["default"]["redelivered"])
        with connect(server) as feed:
            train(feed, ledger)
        assert rewound(server) == 2
    flushed = [(key.encode(), i) for rows in batches[:2] for key, i, _ in rows]
    ledger.assert_complete([*flushed, *ledger.seen])
    assert ledger.batches[0] == [(b"k000", 2), (b"k001", 2)]


def test_a_sleeper_loses_its_lanes_and_who_got_them_is_not_disturbed_when_it_wakes(tmp_path):
    """1. A trainer saves two batches, flushes them, takes a third, and is stopped beyond its lease.
    2. Another gets its sequences as they were flushed.  The first wakes, and saves: it is told.
    3. The first gets other lanes or none, and the other goes on to the end.
    """
    ledger = Ledger(of_counts([6, 6]))
    go_on = tmp_path / "go on"
    with hs.run(lanes(ledger.examples, capacity=2), lease_ttl_s=1.0) as server:
        options = ("--prefetch", "0", "--flush", "2", "--hold", "3", "--until", str(go_on))
        with trainer(server.address, *options) as sleeper:
            sleeper.wait_for("holding")
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


@pytest.mark.parametrize("rank", [{}, {"rank": 0, "world_size": 1}])
@pytest.mark.parametrize(("kind", "call"), [(Blocks, "block"), (SegmentBatch, "__init__")])
def test_a_loop_that_is_interrupted_while_it_takes_a_batch_goes_on_with_the_right_states(
    kind, call, rank, monkeypatch
):
    """A rank has batches of the other partition ahead, which still count.

    Before it has its bytes the batch goes back, and its lanes go on from the states here.
    """
    ledger = Ledger(of_counts([6, 6, 6, 6]))
    partitions = 1 + len(rank) // 2

    def interrupted(of: Any, *given: Any) -> None:
        raise KeyboardInterrupt

    with (
        serving(lanes(ledger.examples), partitions=partitions) as server,
        connect(server, prefetch=2, **rank) as feed,
    ):
        train(feed, ledger, 2)
        feed.flush_states()
        arrived(server, feed, 2)
        with monkeypatch.context() as patch:
            patch.setattr(kind, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(feed)
        train(feed, ledger)
        assert rewound(server) == 0
        assert (server.stats()["default"]["redelivered"] > 0) == (kind is Blocks)
    ledger.assert_complete()


# Lanes that are declared


def assigned(numbers: list[int], **options: Any) -> hs.Pipeline:
    """Examples of one to three steps, each with the number of its lane."""
    examples = [
        {"key": f"k{i}", "x": np.arange(1 + i % 3), "lane": lane} for i, lane in enumerate(numbers)
    ]
    given = {"num_unroll": 1, "batch_size": 2, "order": "lanes", "lane": "lane", **options}
    return hs.from_examples(examples).batch_sequences_with_states(
        "key", ["x"], ["lane"], None, {}, **given
    )


def test_ranks_train_the_examples_of_their_lanes_though_a_worker_dies():
    """1. Two ranks of two lanes train two partitions, and a worker dies.
    2. They go on.  Each lane has had its own examples, one after the other and to their ends.
    """
    numbers = [7 * i // 3 % 4 for i in range(40)]
    came: dict[tuple[int, int], list[Any]] = {}
    with serving(assigned(numbers), partitions=2, workers=2) as server:
        with contextlib.ExitStack() as stack:
            given = {"world_size": 2, "commit": "explicit"}
            ranks = [connect(server, rank=rank, **given) for rank in range(2)]
            feeds = [iter(stack.enter_context(feed)) for feed in ranks]
            for step in itertools.count():
                batches = [next(feed, None) for feed in feeds]
                if step == 3:
                    kill_worker(server)
                if None in batches:
                    break
                for rank, batch in enumerate(batches):
                    for row in batch.valid.nonzero()[0]:
                        number = rank * 2 + batch.lane[row] % 2
                        assert number == batch.context["lane"][row]
                        cell = int(batch.original_key[row][1:]), int(batch.sequence[row])
                        came.setdefault((batch.partition, int(number)), []).append(cell)
                    batch.commit()
    assert batches == [None, None] and len(came) == 8
    for (partition, number), cells in came.items():
        own = [i for i in range(20 * partition, 20 * partition + 20) if numbers[i] == number]
        assert cells == [(i, segment) for i in own for segment in range(1 + i % 3)]


def test_a_lane_without_examples_is_left_out_while_others_fill_the_capacity():
    numbers = [0] * 6 + [1, 0, 1]
    feeds = {
        "small": assigned(numbers, capacity=3),
        "wide": assigned(numbers),
    }
    with serving(feeds) as server:
        rows = {}
        for name in ("small", "wide"):
            with connect(server, feed=name) as feed:
                rows[name] = [batch.lane.tolist() for batch in feed]
        assert rows["wide"] == [[0, 1]] * 4 + [[0]] * 10
        assert [0] in rows["small"][:9] and sum(map(len, rows["small"])) == 18
