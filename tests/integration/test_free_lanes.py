"""Lanes without states through whole servers: batches of segments that commit like plain ones."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually

from .serving import connect, serving


def free(steps: list[int], **options: Any) -> hs.Pipeline:
    rows = [{"k": b"k%d" % i, "x": np.arange(t) + 100 * i} for i, t in enumerate(steps)]
    arguments = {"num_unroll": 1, "batch_size": 2, **options}
    return hs.from_examples(rows).batch_sequences_with_states(
        "k", ["x"], [], initial_states={}, order="lanes", **arguments
    )


def cells(batch: Any) -> list[tuple[bytes, int]]:
    return list(zip(batch.original_key.tolist(), batch.sequence.tolist(), strict=True))


def every(steps: list[int]) -> list[tuple[bytes, int]]:
    return sorted((b"k%d" % i, s) for i, count in enumerate(steps) for s in range(count))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_asking_for_the_next_batch_commits_the_one_in_hand(prefetch: int):
    steps = [3, 1, 4, 2, 2]
    with serving(free(steps)) as server:
        with connect(server, prefetch=prefetch) as feed:
            batches = [(cells(batch), batch.lane.tolist()) for batch in feed]
            assert feed.states == {}
        assert server.stats()["default"]["batches"] == len(batches)
    assert sorted(cell for shown, _ in batches for cell in shown) == every(steps)
    assert batches[0] == ([(b"k0", 0), (b"k1", 0)], [0, 1])
    assert batches[1] == ([(b"k0", 1), (b"k2", 0)], [0, 1])


def test_a_batch_has_no_state_to_read_or_save():
    with serving(free([2, 2])) as server, connect(server) as feed:
        batch = next(feed)
        assert isinstance(batch, headrace.NextQueuedSequenceBatch)
        with pytest.raises(KeyError, match="'h' is not a state of this feed"):
            batch.state("h")
        with pytest.raises(KeyError, match="'h' is not a state of this feed; it has none"):
            batch.save_state("h", [0.0, 0.0])
        with pytest.raises(ValueError, match="has no states"):
            feed.save_states(batch.token, {})
        feed.flush_states()
        assert batch.arrays()["state"] == {} and batch.sequences["x"].tolist() == [[0], [100]]


def test_explicit_commits_are_by_batch_and_the_loop_ends_while_the_last_are_in_hand():
    """The trainer holds all it can get, in both partitions, before it commits any."""
    steps = [2, 3, 1, 2]
    with serving(free(steps), partitions=2) as server:
        with connect(server, commit="explicit", prefetch=2) as feed:
            held = list(feed)
            assert sorted(cell for batch in held for cell in cells(batch)) == every(steps)
            copy.copy(held[-1]).commit()
            feed.commit(held[1:])
            held[0].commit()
            held[0].commit()
            assert list(feed) == []
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["segments"]["rewound"] == 0


def test_with_states_a_batch_is_not_committed_by_its_name():
    pipeline = hs.from_examples([{"k": "a", "x": [1.0]}]).batch_sequences_with_states(
        "k", ["x"], [], initial_states={"h": 0.0}, num_unroll=1, batch_size=1
    )
    with serving(pipeline) as server, connect(server) as feed:
        batch = next(feed)
        with pytest.raises(ValueError, match="committed by the save of its last state"):
            batch.commit()


def test_another_trainer_goes_on_after_the_last_commit_and_nothing_is_lost():
    steps = [5, 5, 5, 5]
    with serving(free(steps)) as server:
        done: list[Any] = []
        feed = connect(server, prefetch=3)
        for batch in itertools.islice(feed, 3):
            done += cells(batch)
        next(feed)
        with contextlib.suppress(RuntimeError), feed:
            raise RuntimeError("the model is gone, and the batch in hand is not committed")
        with connect(server) as feed:
            rest = [cells(batch) for batch in feed]
    assert rest[0] == [(b"k0", 3), (b"k1", 3)]
    assert sorted([*done, *(cell for shown in rest for cell in shown)]) == every(steps)


@pytest.mark.parametrize("durability", ["off", "process"])
def test_commits_out_of_order_do_not_send_their_trainer_away_when_the_owner_dies(
    tmp_path: Path, durability: str
):
    """They count up to the first missing one, so the segments of the later ones come again."""
    steps = [6, 6]
    state = {} if durability == "off" else {"state_dir": tmp_path, "durability": durability}
    with hs.run(free(steps), **state) as server:
        with connect(server, commit="explicit", prefetch=0) as feed:
            first, second, third = itertools.islice(feed, 3)
            feed.commit([second, third])
            eventually(lambda: server.stats()["default"]["batches"] == 2)
            os.kill(server.pids["worker-0-0"], signal.SIGKILL)
            seen = []
            for batch in feed:
                seen += cells(batch)
                batch.commit()
        assert server.wait(PATIENCE_S)
    assert cells(first)[0] == (b"k0", 0) and sorted(seen) == every(steps)


def test_tensorflow_iterates_over_them_and_commits_what_it_has_trained():
    tf = pytest.importorskip("tensorflow")
    steps = [2, 3, 1]
    with serving(free(steps)) as server:
        with connect(server, framework="tf") as feed:
            data = feed.as_dataset()
            assert data.element_spec["state"] == {}
            assert data.element_spec["sequences"]["x"] == tf.TensorSpec((None, 1), tf.int64, "x")
            total = tf.function(lambda batch: tf.reduce_sum(batch.sequences["x"]))
            assert total(next(feed)) == 100
            with pytest.raises(ValueError, match="tells all that is known"):
                feed.as_dataset(facts=["length"])
            keys = [key for element in data for key in element["key"].numpy().tolist()]
        assert server.wait(PATIENCE_S)
    assert len(keys) == len(set(keys)) == sum(steps) - 2


def test_two_trainers_have_lanes_of_their_own():
    steps = [1 + i % 7 for i in range(40)]

    def train(server: hs.Server) -> dict[bytes, list[int]]:
        seen: dict[bytes, list[int]] = {}
        with connect(server) as feed:
            for batch in feed:
                for key, segment in cells(batch):
                    seen.setdefault(key, []).append(segment)
        return seen

    with serving(free(steps), partitions=2) as server, ThreadPoolExecutor(2) as pool:
        one, other = pool.map(train, [server] * 2)
    assert not one.keys() & other.keys()
    for key, segments in {**one, **other}.items():
        assert segments == list(range(steps[int(key[1:])]))
    assert len(one) + len(other) == len(steps)


def test_ranks_in_step_have_them_too():
    steps = [1 + i % 5 for i in range(21)]

    def train(server: hs.Server, rank: int) -> list[list[tuple[bytes, int]]]:
        with connect(server, rank=rank, world_size=2) as feed:
            return [
                [cell for cell, there in zip(cells(batch), batch.valid, strict=True) if there]
                for batch in feed
            ]

    with serving(free(steps), partitions=2) as server, ThreadPoolExecutor(2) as pool:
        one, other = pool.map(train, [server] * 2, range(2))
    assert len(one) == len(other)
    assert sorted(cell for batch in (*one, *other) for cell in batch) == every(steps)


def test_a_server_that_is_started_again_goes_on_after_what_is_committed(tmp_path: Path):
    steps = [4, 4, 4]
    with serving(free(steps), state_dir=tmp_path) as server:
        with connect(server, commit="explicit") as feed:
            batches = [next(feed) for _ in range(3)]
            done = [cell for batch in batches[:2] for cell in cells(batch)]
            feed.commit(batches[:2])
            token = feed.snapshot()
    with serving(free(steps), state_dir=tmp_path) as server, connect(server) as feed:
        rest = [cell for batch in feed for cell in cells(batch)]
    assert sorted([*done, *rest]) == every(steps)
    with serving(free(steps), state_dir=tmp_path) as server:
        with connect(server, resume=token) as feed:
            again = [cell for batch in feed for cell in cells(batch)]
    assert again == rest
