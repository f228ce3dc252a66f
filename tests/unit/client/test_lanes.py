"""States that stay with the trainer come back to their rows."""

import contextlib

import numpy as np
import pytest

from headrace import state_block
from headrace.batch_memory import BatchGone
from headrace.framework import NUMPY
from headrace.state_block import BlockMaker
from headrace_proto.errors import ProtocolError
from headrace_proto.segment_layout import SegmentLayout

from .serving import LSTM, TAG, columns_of, in_hand, properties, schema_of, states_in

TOLD = properties((LSTM, TAG), "trainer", "lanes")
NUMBERS = properties((LSTM,), "trainer", "lanes")


def save(hands):
    """Save all states of the last batch."""
    batch = hands.batches[-1]
    batch.save_state("lstm", np.ones((batch.rows, 3), np.float32))
    with contextlib.suppress(KeyError):  # without that state
        batch.save_state("tag", [b""] * batch.rows)


def test_after_a_batch_that_was_rejected_the_ones_that_continue_it_go_back():
    hands = in_hand(NUMBERS, columns_of(NUMBERS))
    save(hands)
    hands.deliver(columns_of(NUMBERS, sequence=1))
    hands.saving._give_up(0, hands.take().token)
    hands.deliver(columns_of(NUMBERS, sequence=1))
    with pytest.raises(BatchGone):
        hands.take()
    hands.saving._give_up(0, hands.last)
    hands.deliver(columns_of(NUMBERS))
    assert not hands.take().state("lstm").any() and hands.link.returned == [2, 3]


@pytest.mark.parametrize("first", [0, 1])
def test_a_row_that_goes_on_without_a_kept_state_is_a_protocol_error(first):
    starts = [1 - first]  # the other row goes on
    given = {"starts": np.array(starts), "state_of": np.array([-1])}
    with pytest.raises(ProtocolError, match=f"batch 0/1 of lanes goes on in lane {first}"):
        in_hand(NUMBERS, columns_of(NUMBERS, **given))


# Handing over


def flushed(hands):
    maker = BlockMaker(SegmentLayout(schema_of(TOLD), TOLD).states)
    (kept,) = hands.saving._lanes.values()
    parts = maker.parts(kept.states, np.flatnonzero(kept.goes_on).tolist(), NUMPY)
    return [(rows, states_in(TOLD, columns, block)) for rows, columns, block in parts]


def test_flushed_states_are_sent_in_parts_of_bounded_size(monkeypatch):
    hands = in_hand(TOLD, columns_of(TOLD, rows=4))
    save(hands)
    monkeypatch.setattr(state_block, "_PART_BYTES", 50)
    assert [rows for rows, _ in flushed(hands)] == [(0, 1), (2, 3)]
    monkeypatch.setattr(state_block, "_PART_BYTES", 1)  # at least one row to each
    assert [rows for rows, _ in flushed(hands)] == [(0,), (1,), (2,), (3,)]
