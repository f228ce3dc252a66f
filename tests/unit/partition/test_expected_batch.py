"""A batch that is prepared takes no room that others need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.leasing.words import Outlook
from tests.unit.segment_player import Player, same_states


def test_the_room_of_a_prepared_batch_is_there_for_others(tmp_path: Path):
    examples = [{"k": f"key{i}", "x": np.arange(20)} for i in range(8)]
    pipeline = hs.from_examples(examples).batch_sequences_with_states(
        "k", ["x"], [], None, {"s": hs.zeros((3,))}, num_unroll=2, batch_size=2
    )
    player = Player(pipeline, tmp_path, slab_pages=2)
    first = player.take()
    player.feed.prepare()
    blocks = [player.slab.allocate(1) for _ in range(2)]
    assert None not in blocks and player.slab.allocate(1) is None
    player.save(first, {"s": first["state:s"] + 1})
    assert player.step() is Outlook.FULL
    player.feed.prepare()
    player.slab.free(blocks[0])
    taken = player.taken(player.step())
    assert taken["@sequence"].tolist() == [1, 1] and (taken["state:s"] == 1).all()


def test_the_room_of_a_batch_that_was_prepared_and_not_wanted_is_free_again(tmp_path: Path):
    """A change of the batch size comes after it was prepared."""
    examples = [{"k": f"key{i}", "x": np.arange(4)} for i in range(8)]
    pipeline = hs.from_examples(examples).batch_sequences_with_states(
        "k", ["x"], [], None, {"s": hs.zeros((3,))}, num_unroll=2, batch_size=2
    )
    player = Player(pipeline, tmp_path)
    first = player.take()
    assert player.feed.prepare()
    player.order("batch_size", [3])
    player.save(first, same_states(first))
    assert len(player.take()) == 3 and not player.slab._lent and not player.slab.used_bytes


CALLS: list[int] = []


def noted(sequences: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    CALLS.append(int(sequences["x"][0]))
    return {"y": sequences["x"] * 2}


@pytest.mark.parametrize("varies", [False, True])
def test_the_calls_of_a_prepared_batch_end_where_a_trainer_asks_and_go_on_from_there(
    tmp_path: Path, varies: bool
):
    """No segment is called for twice, whether the batch is made at once or by and by."""
    schema = {"y": hs.sequence("int64")} if varies else None
    examples = [{"k": i, "x": np.arange(10 * i, 10 * i + 6)} for i in range(9)]
    pipeline = hs.from_examples(examples).batch_sequences_with_states(
        "k", ["x"], [], None, {"s": hs.zeros((3,))}, num_unroll=2, batch_size=3
    )
    player = Player(pipeline.map_segments(noted, schema=schema), tmp_path)
    first = player.take()
    CALLS.clear()
    assert player.feed.prepare() and player.feed.calls_ahead and not CALLS
    player.feed.call_ahead(lambda: False)
    assert CALLS == [2]
    player.feed.call_ahead(lambda: len(CALLS) < 2)
    assert CALLS == [2, 12] and player.feed.calls_ahead
    player.save(first, same_states(first))
    second = player.take()
    assert CALLS == [2, 12, 22] and not player.feed.calls_ahead
    assert second["sequences:y"].tolist() == [[4, 6], [24, 26], [44, 46]]
    assert player.feed.prepare()
    player.feed.call_ahead(lambda: True)
    assert CALLS[3:] == [4, 14, 24] and not player.feed.calls_ahead
    player.save(second, same_states(second))
    assert player.take()["sequences:y"].tolist() == [[8, 10], [28, 30], [48, 50]]
    assert CALLS[6:] == []
