"""Batches are the same whether they were prepared or not, and a wrong guess leaves no trace."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_server.leasing.protocol import ANYONE, Outlook, Slot
from headrace_server.pipeline.builder import Pipeline
from tests.examples import some
from tests.unit.segment_player import Player, Taken, no_states

ORDERS = [("arrival", "server"), ("lanes", "server"), ("lanes", "trainer")]


def cut(steps: list[int], batch_size: int, kind: tuple[str, str], **more: Any) -> Pipeline:
    rows = [
        {
            "k": b"key%d" % i,
            "x": np.arange(100 * i, 100 * i + t),
            "c": b"c" * (i % 7),
            "start": np.full(2, i, np.float32),
        }
        for i, t in enumerate(steps)
    ]
    schema = {
        "k": hs.scalar("bytes"),
        "x": hs.sequence("int64"),
        "c": hs.scalar("bytes"),
        "start": hs.fixed("float32", (2,)),
    }
    states = {"own": "start", "zero": hs.zeros((3,))}
    return hs.from_examples(rows, schema).batch_sequences_with_states(
        "k",
        ["x"],
        ["c"],
        None,
        states,
        2,
        batch_size,
        order=kind[0],
        state_placement=kind[1],
        **more,
    )


def moved_on(taken: Taken) -> dict[str, np.ndarray]:
    """States after a batch."""
    return {n[6:]: c + 1 for n, c in taken.columns.items() if n.startswith("state:")}


def same(one: Taken, other: Taken) -> None:
    assert one.batch.name == other.batch.name and one.batch.turn == other.batch.turn
    for name, column in one.columns.items():
        assert np.array_equal(column, other.columns[name]), name


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=some(60),
    deadline=None,
)
@given(
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    batch_size=st.integers(1, 4),
    more=st.none() | st.integers(0, 8),
    pages=st.integers(2, 12),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(ORDERS),
)
def test_no_batch_depends_on_which_ones_were_prepared(
    steps: list[int],
    batch_size: int,
    more: int | None,
    pages: int,
    seed: int,
    kind: tuple[str, str],
    tmp_path: Path,
):
    capacity = None if more is None else batch_size + more
    pipeline = cut(steps, batch_size, kind, capacity=capacity)
    one, other = Player(pipeline, tmp_path, pages), Player(pipeline, tmp_path, pages)
    random = Random(seed)
    out: list[Taken] = []
    opened, slots = 0, list[Slot]([ANYONE])
    if kind[0] == "lanes":
        slots = [b"trainer 0"]
    for _ in range(300):
        act = random.random()
        slot = random.choice(slots)
        if act < 0.3:
            one.feed.prepare()
        elif act < 0.6:
            taken, expected = one.take(slot), other.take(slot)
            if not isinstance(taken, Taken):
                assert taken is expected
                continue
            same(taken, expected)
            out.append(taken)
        elif act < 0.95 and out:
            taken = out.pop(0)
            states = no_states(taken) if kind[1] == "trainer" else moved_on(taken)
            answers = [player.save(taken, states) for player in (one, other)]
            assert answers[0] == answers[1]
        elif act >= 0.96 and kind[0] == "lanes" and opened < 6:
            if act >= 0.98:
                slots.remove(slot)
                for player in (one, other):
                    player.feed.leave(slot)
            opened += 1
            slots.append(b"trainer %d" % opened)
    counts = [player.feed.status()["segments"] for player in (one, other)]
    assert counts[0] == counts[1] and one.feed.dropped() == other.feed.dropped()
    assert one.slab.used_bytes == other.slab.used_bytes == 0


def test_the_room_of_a_prepared_batch_is_there_for_others(tmp_path: Path):
    player = Player(cut([20] * 8, 2, ("arrival", "server")), tmp_path, slab_pages=2)
    first = player.take()
    player.feed.prepare()
    blocks = [player.slab.allocate(1) for _ in range(2)]
    assert None not in blocks and player.slab.allocate(1) is None
    player.save(first, moved_on(first))
    assert player.step() is Outlook.FULL
    player.feed.prepare()
    player.slab.free(blocks[0])
    taken = player.taken(player.step())
    assert taken["@sequence"].tolist() == [1, 1] and (taken["state:zero"] == 1).all()
