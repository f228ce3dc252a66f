"""Batches counted from lengths are those that the machine of segments makes of examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.leasing.words import ANYONE, Outlook
from headrace_server.shaping.input import Input
from headrace_server.shaping.lane_count import rounds
from headrace_server.shaping.plan import Read
from headrace_server.shaping.segments import AT_SERVER, AT_TRAINER, NOWHERE, Segments
from headrace_server.shaping.spans import Cut


def made(
    machine: Segments, steps: np.ndarray, openings: np.ndarray | None, world: int, chunk: int
) -> int:
    """Return how many batches or rounds the machine makes; each is committed before the next."""
    machine.input = Input(machine, 0, 1, True)
    if world:
        machine.deal(1, world)
    slots: list[Any] = [*range(world)] or [b"trainer" if machine.lanes else ANYONE]
    number = commits = 0
    while True:
        step = machine.step(slots[0], 0, chunk)
        if step is Outlook.ENDED:
            return number
        if isinstance(step, Read):
            at, to = step.position, min(step.position + chunk, len(steps))
            facts = {"key": [(0, i) for i in range(at, to)], "steps": steps[at:to]}
            facts["openings"] = None if openings is None else openings[at:to]
            after = to if to < len(steps) else None
            machine.input.arrived(step, to - at, after, facts, to - at)
            continue
        assert isinstance(step, list), step
        number += 1
        for plan in step:
            commits += 1
            machine.commit(plan.batch, commits)


@given(st.data())
def test_batches_are_counted_as_the_machine_makes_them(data: st.DataObject) -> None:
    draw = data.draw
    steps = np.array(draw(st.lists(st.integers(1, draw(st.integers(1, 60))), max_size=40)), int)
    world, size, unroll = draw(st.integers(0, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    lanes = not world or draw(st.booleans())
    packed = lanes and draw(st.booleans())
    cut = Cut(unroll, unroll if packed else draw(st.integers(1, unroll)), packed)
    states = draw(st.sampled_from((AT_SERVER, AT_TRAINER, NOWHERE))) if lanes else AT_SERVER
    small, most = draw(st.booleans()), draw(st.sampled_from((2, 50))) if packed else 1
    all_lanes = size * max(1, world)
    capacity = draw(st.sampled_from((None, all_lanes, all_lanes + 2)))
    openings = None
    if not packed and draw(st.booleans()):
        openings = np.array([draw(st.integers(1, cut.stride)) for _ in steps], int)
    found = rounds(steps, cut, openings, all_lanes, small, most)
    if found is None:
        assert packed and most == 2
        return
    machine = Segments(0, size, capacity, small, lanes=lanes, states=states, cut=cut, most=most)
    assert found == made(machine, steps, openings, world, draw(st.integers(1, 20)))
