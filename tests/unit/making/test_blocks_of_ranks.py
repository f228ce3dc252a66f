"""The block of a member of a round: its rows at their places, and all others blank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.core.dispatch_effects import Batch
from headrace_server.core.slots import RoundMember, Segments
from headrace_server.making.segment_block import places_of_starts
from tests.unit.segment_player import Player, no_states, same_states

STEPS = [3, 1, 4, 2, 2, 1, 5]
ORDERS = pytest.mark.parametrize(
    "order", [("arrival", "server"), ("lanes", "server"), ("lanes", "trainer")], ids="-".join
)


def feed(order: tuple[str, str], **changes: Any) -> hs.Pipeline:
    examples = [
        {
            "k": b"k%d" % i,
            "x": np.arange(10 * i, 10 * i + n, dtype=np.float32),
            "words": [f"{i}.{t}" for t in range(n)],
            "label": np.int32(i + 1),
            "who": [f"one {i}", "two"],
            "origin": np.int64(i + 7),
        }
        for i, n in enumerate(STEPS)
    ]
    states = {"s": "origin", "t": ["mark"], **changes}
    return hs.from_examples(examples).batch_sequences_with_states(
        *("k", ["x", "words"], ["label", "who"], None, states, 2, 2),
        order=order[0],
        state_placement=order[1],
        capacity=6,
    )


@ORDERS
def test_empty_rows_are_blank_in_every_column(order: tuple[str, str], tmp_path: Path):
    player = Player(feed(order), tmp_path)
    player.feed.commits.deal(3, 7, 0)
    empty = seen = number = 0
    while True:
        number += 1
        player.feed.commits.want(1, 0)
        made = player.step()
        if not isinstance(made, Batch):
            break
        members = [player.taken(made), *(player.taken(player.step()) for _ in range(2))]
        for rank, member in enumerate(members):
            valid = member["@sequence_count"] > 0
            assert (len(member), member.meta["rank"], member.meta["round"]) == (2, rank, number - 1)
            assert member.meta["empty"] == 2 - valid.sum()
            for name, column in member.columns.items():
                if name in ("@lane", "@starts", "@state_of") or len(column) != 2:
                    continue
                blank = column[~valid]
                assert set(blank.reshape(-1).tolist()) <= {b"" if column.dtype == object else 0}
            for row in np.flatnonzero(valid):
                which, at = int(member["@key"][row][1:]), int(member["@sequence"][row])
                steps = [10 * which + t for t in range(STEPS[which])][2 * at : 2 * at + 2]
                assert member["sequences:x"][row].tolist() == [*steps, 0][:2]
                assert member["context:who"][row].tolist() == [b"one %d" % which, b"two"]
                assert member["context:label"][row] == which + 1
                if order[1] == "server":
                    assert member["state:s"][row] == which + 7 + 100 * at
                seen += 1
            empty += int((~valid).sum())
            if order[1] == "trainer":
                starts = member["@starts"].tolist()
                assert set(np.flatnonzero(~valid)) <= set(starts) and starts == sorted(starts)
                of = dict(zip(starts, member["@state_of"].tolist(), strict=True))
                assert all(of[place] == -1 for place in np.flatnonzero(~valid).tolist())
        for member in members:
            states = same_states(member) if order[1] == "server" else no_states(member)
            if states:
                states["s"] = states["s"] + 100
            assert player.save(member, states) == ("", "")
    assert seen == sum(-(-n // 2) for n in STEPS) and empty
    assert player.slab.used_bytes == 0


def test_every_place_without_an_example_starts_a_lane():
    rows = np.array([4, 9])
    numbers = np.array([rows, rows, rows, rows, rows, rows + 2])
    batch = Segments(rows, numbers, 3, np.array([0, 2]), np.array([1]))
    assert places_of_starts(batch, RoundMember(5, 1, size=4)).tolist() == [1, 2, 3]
