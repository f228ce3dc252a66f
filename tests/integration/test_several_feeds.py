"""Feeds and trainers of one server: they share it, and no row is lost or given out twice."""

from __future__ import annotations

import pytest

import headrace
import headrace_server as hs
from tests.waiting import waits_end_with

from .serving import connect, serving


def numbered(n: int, batch_size: int = 4) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).batch(batch_size, True)


# Coordinated


def test_a_rank_of_segments_waits_for_the_others_and_says_so() -> None:
    examples = hs.from_examples([{"k": f"{k}", "x": [1, 2]} for k in range(8)])
    segments = examples.batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((), "float32")},
        num_unroll=1,
        batch_size=1,
    )
    with serving(segments) as server, connect(server, rank=0, world_size=2) as feed:
        batch = next(feed)
        batch.save_state("s", batch.state("s"))
        absent = "1 ranks have not joined: 1"
        with waits_end_with(absent), pytest.raises(headrace.DeadlineExceeded, match=absent):
            next(feed)


def test_ranks_that_do_not_go_together_are_refused() -> None:
    with (
        serving(numbered(8, 1)) as server,
        connect(server, rank=0, world_size=2),
    ):
        with pytest.raises(headrace.ProtocolError, match="world_size=3 differs from 2"):
            connect(server, rank=1, world_size=3)
        with pytest.raises(headrace.ProtocolError, match="coordinated mode with world_size=2"):
            connect(server)


def test_a_rank_does_not_join_trainers_without_one() -> None:
    with (
        serving(numbered(8, 1)) as server,
        connect(server),
        pytest.raises(headrace.ProtocolError, match="trainers without a rank use this feed"),
    ):
        connect(server, rank=0, world_size=2)
