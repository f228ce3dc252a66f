"""Segments of sequences that grow."""

from __future__ import annotations

import pytest

from headrace_server.leasing.words import Outlook
from headrace_server.shaping.input import Input
from headrace_server.shaping.log_admission import ABORT, END, Event, Growth
from headrace_server.shaping.plan import Read
from headrace_server.shaping.segments import NOWHERE, Segments
from headrace_server.shaping.spans import Cut


def machine(packed: bool = False, growth: Growth | None = None) -> Segments:
    made = Segments(
        0,
        2,
        lanes=True,
        states=NOWHERE,
        allow_small=True,
        cut=Cut(2, 2, packed, True),
        most=3,
        growth=growth or Growth(),
    )
    made.input = Input(made, 0)
    made.seat(b"one")
    return made


def drafted(machine: Segments, events: list[Event], over: bool = False) -> list[list[int]]:
    """Let events come; return the rows of the next batch: sequence, first step, step after it."""
    step = machine.step(b"one", 0, 64)
    while isinstance(step, Read):
        assert machine.log is not None
        machine.log.take_events(events, max([e.position for e in events], default=-1))
        machine.input.arrived(step, 0, None if over else 0)
        events, over = [], True
        step = machine.step(b"one", 0, 64)
    if isinstance(step, Outlook):
        return []
    (plan,) = step
    spans = plan.draft
    lines = machine.entries.line[spans.entries].tolist()
    return [
        list(row) for row in zip(lines, spans.first.tolist(), spans.after.tolist(), strict=True)
    ]


@pytest.mark.parametrize("packed", [False, True])
def test_an_aborted_sequence_leaves_its_lane_while_a_batch_has_it(packed):
    """Without states the next batch of its lanes is drafted before that one is committed."""
    one = machine(packed)
    begun = [Event(1, 1, True, 4), Event(2, 2, True, 6)]
    assert drafted(one, begun) == [[1, 0, 2], [2, 0, 2]]
    assert one.log is not None
    one.log.take_events([Event(3, 1, close=ABORT), Event(4, 2, close=END)], 4)
    while one.log.advance():
        pass
    assert drafted(one, []) == [[2, 2, 4]]
    assert drafted(one, []) == [[2, 4, 6]]
    for out in [*one._out.values()]:
        one.commit(out.batch, 1)
    assert one.entries.live == 0 and one.dropped() == {"aborted": 2 if packed else 1}


def test_a_claim_leaves_no_segments_out_that_are_young_enough():
    """A batch whose earlier one is not claimed yet is refused: that one's steps are not old."""
    growth, begun = (
        Growth(max_staleness=5, skips=True),
        [Event(1, 1, True, 4), Event(2, 2, True, 4)],
    )
    before, now = machine(growth=growth), machine(growth=growth)
    assert drafted(before, begun) and drafted(before, [])
    first, second = (out.batch for out in before._out.values())
    assert now.reclaim(first) is None  # the log is to be read
    assert now.log is not None
    now.log.take_events(begun, 2)
    assert not now.reclaim(second)
    assert now.reclaim(first) and now.reclaim(second)
    assert not now.dropped()
