"""Lanes without states through whole servers: batches of segments that commit like plain ones."""

from __future__ import annotations

import copy
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

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


@pytest.mark.parametrize("durability", ["off", "process"])
def test_commits_out_of_order_do_not_send_their_trainer_away_when_the_owner_dies(
    tmp_path: Path, durability: str
):
    """They wait for the first one, also in the hands of the owner's next life."""
    steps = [6, 6]
    state = {} if durability == "off" else {"state_dir": tmp_path, "durability": durability}
    with hs.run(free(steps), **state) as server:
        with connect(server, commit="explicit", prefetch=0) as feed:
            first, second, third = itertools.islice(feed, 3)
            feed.commit([second, third])
            os.kill(server.pids["worker-0-0"], signal.SIGKILL)
            feed.commit(first)
            seen = [cell for batch in (first, second, third) for cell in cells(batch)]
            for batch in feed:
                seen += cells(batch)
                batch.commit()
        assert server.wait(PATIENCE_S)
    assert cells(first)[0] == (b"k0", 0) and sorted(seen) == every(steps)
