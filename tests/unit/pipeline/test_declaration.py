"""The counted number of batches is the number that partitions make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import headrace_server as hs
from headrace_server.leasing.words import ANYONE
from headrace_server.shaping.bucket import PlainBatches
from headrace_server.shaping.input import Input
from headrace_server.shaping.plain import PlainMachine
from headrace_server.shaping.plan import Read

ROWS = hs.from_examples([{"x": i, "n": i} for i in range(9)])


def made(share: int, size: int, smaller: bool, epochs: int, across: bool) -> int:
    """How many batches the machine of a partition makes of the whole feed."""
    shaper = PlainBatches(size, smaller)
    machine = PlainMachine(0, Input(shaper, 0, epochs, across), shaper)
    batches = 0
    while not machine.finished:
        step = machine.step(ANYONE, epochs, 5)
        if isinstance(step, Read):
            upto = min(step.position + step.limit, share)
            machine.input.arrived(step, upto - step.position, upto if upto < share else None)
        elif isinstance(step, list):
            batches += len(step)
    return batches


@given(
    st.integers(0, 23),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_it_is_the_number_of_batches_that_are_made(
    examples, size, partitions, epochs, smaller, across
):
    pipeline = ROWS.repeat(epochs, across_batches=across).batch(size, smaller)
    declaration = pipeline.declaration()
    assert not declaration.uncounted()
    loops = 1 if across else epochs
    for partition in range(partitions):
        share = (partition + 1) * examples // partitions - partition * examples // partitions
        rows = share * epochs if across else share
        assert declaration.batches_of(rows) * loops == made(share, size, smaller, epochs, across)
