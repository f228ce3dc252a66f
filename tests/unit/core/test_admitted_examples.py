"""Examples are admitted in order, as capacity lets them; a key is in flight once.

What both orders have in common, shown by the machine of arrival.
"""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import FIRST_INDEX
from headrace_server.core.arrival_order import ArrivalOrder
from tests.examples import some


def offer(machine, chunk, keys, counts=None):
    counts = [1] * len(keys) if counts is None else counts
    machine.offer(chunk, len(keys), {"key": list(keys), "count": np.array(counts)})


# Insertion indices


# Capacity


# Chunks


# Keys


@settings(max_examples=some(100), deadline=None, derandomize=True)
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=4), max_size=8), st.data())
def test_no_two_examples_in_flight_have_one_key(chunks, data):
    machine = ArrivalOrder(1, data.draw(st.none() | st.integers(1, 4)))
    machine.want(10**6)
    seen = []
    for chunk, keys in enumerate(chunks):
        offer(machine, chunk, keys, data.draw(st.lists(st.integers(1, 3), min_size=len(keys))))
        for _ in range(data.draw(st.integers(0, 4))):
            batch = machine.next_draft()
            if batch is not None:
                slot = int(batch.slots[0])
                assert machine.key_of(slot) == chunks[int(batch.chunks[0])][int(batch.rows[0])]
                seen.append(batch)
                machine.saved(batch)
    machine.finish()
    while (batch := machine.next_draft()) is not None:
        seen.append(batch)
        machine.saved(batch)
    refused = set(machine.take_refused())
    began = [(int(b.chunks[0]), int(b.rows[0])) for b in seen if b.segments[0] == 0]
    admitted = {int(b.indices[0]) - FIRST_INDEX for b in seen}
    everything = {(c, r) for c, keys in enumerate(chunks) for r in range(len(keys))}
    assert refused | set(began) == everything and not refused & set(began)
    assert admitted == set(range(len(began))) and began == sorted(began)
    assert machine.done and machine.chunks() == set()


# The end
