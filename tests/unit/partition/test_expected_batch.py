"""A batch that is prepared takes no room that others need."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import headrace_server as hs
from headrace_server.leasing.protocol import Outlook
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
