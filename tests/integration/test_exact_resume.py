"""A feed of segments that is resumed goes on batch for batch, numbers and lanes included."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import PATIENCE_S

from .segment_streams import at_once
from .serving import connect

ORDERS = pytest.mark.parametrize(
    ("order", "states"), [("arrival", True), ("lanes", True), ("lanes", False)]
)
STEPS = 11


def segments(order: str, states: bool) -> Any:
    rows = [
        {"k": b"k%d" % i, "v": np.full(2 + 2 * (i * 7 % 5), i + 1, np.float32)} for i in range(40)
    ]
    schema = {"k": hs.scalar("bytes"), "v": hs.sequence("float32")}
    initial = {"s": hs.zeros((2,))} if states else {}
    feed = hs.from_examples(rows, schema).repeat(2)
    return feed.batch_sequences_with_states(
        "k", ["v"], [], None, initial, 2, 3, order=order, capacity=24
    )


def trained(batch: Any, order: str, states: bool) -> Any:
    """Do a step of training; return all that the batch has."""
    seen = [batch.partition, batch.number, list(batch.key), batch.sequence.tolist()]
    if order == "lanes":
        seen.append(batch.lane.tolist())
    if states:
        state = batch.state("s")
        seen.append(state.tolist())
        steps = np.arange(1, batch.rows + 1, dtype=np.float32)
        batch.save_state("s", state + steps[:, None])
    return seen


def ranks(server: hs.Server, order: str, states: bool, **options: Any) -> tuple[list[Any], Any]:
    """Train as two ranks; return what each has seen, and a snapshot after some steps."""
    seen: list[list[Any]] = [[], []]
    barrier, tokens = threading.Barrier(2), []

    def work(rank: int) -> None:
        with connect(server, rank=rank, world_size=2, prefetch=0, **options) as feed:
            for batch in feed:
                barrier.wait(PATIENCE_S)
                seen[rank].append(trained(batch, order, states))
                if len(seen[rank]) == STEPS and "resume" not in options:
                    if rank:
                        feed.snapshot()  # its own commits are stored then
                    barrier.wait(PATIENCE_S)
                    if not rank:
                        tokens.append(feed.snapshot())
                    barrier.wait(PATIENCE_S)

    at_once([lambda: work(0), lambda: work(1)])
    return seen, tokens


@ORDERS
def test_one_trainer_gets_the_rest_of_its_stream_from_another_number_of_workers(
    order: str, states: bool, tmp_path: Path
):
    pipeline = segments(order, states)
    with (
        hs.run(pipeline, partitions=3, workers=2, state_dir=tmp_path) as server,
        connect(server, prefetch=0) as feed,
    ):
        for _, batch in zip(range(STEPS), feed, strict=False):
            trained(batch, order, states)
        token = feed.snapshot()
        rest = [trained(batch, order, states) for batch in feed]
    with (
        hs.run(pipeline, partitions=3, workers=3, state_dir=tmp_path, resume=token) as server,
        connect(server, prefetch=0, resume=token) as feed,
    ):
        assert [trained(batch, order, states) for batch in feed] == rest


@ORDERS
def test_ranks_of_another_run_get_the_rest_of_their_streams(
    order: str, states: bool, tmp_path: Path
):
    pipeline = segments(order, states)
    with hs.run(pipeline, partitions=3, workers=2, state_dir=tmp_path) as server:
        seen, (token,) = ranks(server, order, states, run=1)
    with hs.run(pipeline, partitions=3, workers=3, state_dir=tmp_path, resume=token) as server:
        again, _ = ranks(server, order, states, run=2, resume=token)
    assert again == [one[STEPS:] for one in seen]
