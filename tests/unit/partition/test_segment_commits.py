"""One partition of segments at work: its rests, its reports, and the memory that it frees."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.leasing.words import ANYONE, Outlook
from headrace_server.pipeline.builder import Pipeline
from tests.footprint import entries
from tests.unit.changes import Model
from tests.unit.segment_player import Player, Taken, no_states, same_states

SCHEMA = {"k": hs.scalar("bytes"), "x": hs.sequence("int64")}
ORDERS = [("arrival", "server"), ("lanes", "server"), ("lanes", "trainer")]


def never(row: dict[str, Any]) -> bool:
    return False


def source(steps: list[int], keys: Any = None) -> Pipeline:
    rows = [
        {"k": b"k%d" % i if keys is None else keys[i], "x": np.full(t, i)}
        for i, t in enumerate(steps)
    ]
    return hs.from_examples(rows, SCHEMA)


def cut(
    pipeline: Pipeline | list[int],
    batch_size: int,
    num_unroll: int = 1,
    order: str = "arrival",
    placement: str = "server",
    **more: Any,
) -> Pipeline:
    if isinstance(pipeline, list):
        pipeline = source(pipeline)
    states = {"s": hs.zeros((2,))}
    more |= {"order": order, "state_placement": placement}
    return pipeline.batch_sequences_with_states(
        "k", ["x"], [], None, states, num_unroll, batch_size, **more
    )


def keys_of(taken: Taken) -> list[bytes]:
    keys: list[bytes] = taken["@key"].tolist()
    return keys


# Rest and end


def test_a_source_of_which_all_is_bad_or_filtered_ends_at_once(tmp_path: Path):
    skipping = source([0] * 100).options(on_bad_example="skip")
    player = Player(cut(skipping, 3), tmp_path)
    assert player.take() is Outlook.ENDED and player.feed.dropped() == {"bad:no_steps": 100}
    assert player.feed.held == {}
    player = Player(cut(source([1] * 100).filter(f"{__name__}:never"), 3), tmp_path)
    assert player.take() is Outlook.ENDED and player.feed.dropped() == {"filtered": 100}
    endless = Player(cut(skipping.repeat(), 3), tmp_path)
    assert endless.take() is Outlook.ENDED, "epochs without examples are no feed"


# Room


def test_a_trainer_may_leave_while_its_batch_waits_for_room(tmp_path: Path):
    player = Player(cut([3] * 4, 2, 1, "lanes", "trainer"), tmp_path, slab_pages=1)
    held = player.step(b"one")
    assert player.step(b"two") is Outlook.FULL
    player.feed.machine.leave(b"two")
    first = player.taken(held)
    taken = player.take(b"three")
    assert taken.number == 2 and taken.rows == [(b"k2", 0, 3), (b"k3", 0, 3)]
    assert player.save(first) is None and player.save(taken) is None


def test_lanes_go_on_while_their_last_batch_waits_for_room(tmp_path: Path):
    player = Player(cut([2] * 2, 2, 1, "lanes", "trainer"), tmp_path, slab_pages=1)
    held = player.step(b"one")
    assert player.step(b"one") is Outlook.FULL and player.feed.machine.live(b"one")
    player.slab.free(held.body.block)
    assert player.take(b"one").rows == [(b"k0", 1, 2), (b"k1", 1, 2)]
    assert not player.feed.machine.live(b"one")


def test_who_leaves_takes_no_batch_of_another_along_that_waits_for_room(tmp_path: Path):
    player = Player(cut([3] * 4, 2, 1, "lanes", "trainer"), tmp_path, slab_pages=1)
    held = player.step(b"one")
    assert player.step(b"two") is Outlook.FULL
    player.feed.machine.leave(b"one")
    player.slab.free(held.body.block)
    assert player.take(b"two").rows == [(b"k2", 0, 3), (b"k3", 0, 3)]


def test_a_batch_that_waits_for_room_goes_to_a_trainer_that_has_it_of_an_earlier_life(
    tmp_path: Path,
):
    """No later batch holds the segments that were prepared for it."""
    pipeline = cut([1] * 30, 10)
    before = Player(pipeline, tmp_path)
    _, held = before.step(), before.step()
    player = Player(pipeline, tmp_path, slab_pages=1)
    first = player.step()
    assert player.step() is Outlook.FULL
    assert player.feed.reclaim(replace(held))
    player.taken(first)
    assert keys_of(player.take()) == [b"k%d" % i for i in range(20, 30)]


@pytest.mark.parametrize("reclaims", [False, True])
def test_rows_that_are_read_again_have_the_proportions_that_they_had(
    reclaims: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The worker dies after a change of proportions, which came behind four rejected rows."""
    monkeypatch.setattr("headrace_server.reading.intake.Intake.limit", lambda self, most: 4)
    classes = [0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0]
    rows = [{"k": b"k%d" % i, "x": [i], "y": y} for i, y in enumerate(classes)]
    pipeline = hs.from_examples(rows, {**SCHEMA, "y": hs.scalar("int64")})
    pipeline = cut(pipeline.stratified_sample("y", [1, 0], init_probs=[0.5, 0.5]), 2)
    before, model = Player(pipeline, tmp_path), Model()
    first = before.take()
    assert before.save(first, same_states(first)) is None
    before.step()
    while before.feed.intake.rows_read < 8:
        before.feed.make(ANYONE, 0)
    before.order("target", [0, 1])
    held = before.step()
    for change in before.feed.take_records():
        model.apply(change)

    player = Player(pipeline, tmp_path)
    player.feed.resume(model.saved)
    if reclaims:
        assert player.feed.reclaim(replace(held))
    batches, _ = player.play(same_states)
    held_rows = [] if reclaims else [[b"k9", b"k10"]]
    later = [[b"k11", b"k12"], [b"k13", b"k14"]]
    assert [keys_of(one) for one in batches] == [[b"k2", b"k3"], *held_rows, *later]


# The end that others set


@pytest.mark.parametrize(("order", "placement"), ORDERS)
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("after", range(6))
def test_a_close_at_any_time_gives_out_what_was_read_and_a_cancel_only_what_is_ready(
    after: int, cancel: bool, order: str, placement: str, tmp_path: Path
):
    player = Player(cut(source([2] * 100).repeat(), 10, 1, order, placement), tmp_path)
    states = same_states if placement == "server" else no_states
    for _ in range(after):
        taken = player.take()
        assert player.save(taken, states(taken)) is None
    out = player.take()
    player.order("close", cancel)
    player.order("close", cancel)
    answer = player.save(out, states(out))
    if cancel and (out["@sequence"] == 0).any():
        assert answer[0] == "cancelled" and "drained with cancel=True" in answer[1]
    else:
        assert answer is None
    rows = 0
    while isinstance(taken := player.take(), Taken):
        rows += len(taken)
        if cancel:
            assert not taken["@sequence"].any() or order == "lanes"
            assert (player.save(taken, states(taken)) or ["cancelled"])[0] == "cancelled"
        else:
            assert player.save(taken, states(taken)) is None
    assert taken is Outlook.ENDED and player.feed.held == {}
    assert player.feed.status()["segments"]["in_flight"] == 0
    dropped = player.feed.dropped()
    if cancel:
        assert set(dropped) == {"cancelled"} and dropped["cancelled"] > 0
    else:
        assert not dropped and rows > 0
    assert player.feed.status()["segments"]["in_flight"] == 0
    assert player.step() is Outlook.ENDED


def test_a_close_while_a_batch_waits_for_room_leaves_it(tmp_path: Path):
    player = Player(cut([2] * 30, 10, capacity=20), tmp_path, slab_pages=1)
    held = player.step()
    assert player.step() is Outlook.FULL
    player.order("close", True)
    assert player.step() is Outlook.FULL
    first = player.taken(held)
    second = player.take()
    assert keys_of(second) == [b"k%d" % i for i in range(10, 20)]
    for taken in (first, second):
        assert player.save(taken, same_states(taken))[0] == "cancelled"
    assert player.step() is Outlook.ENDED


# What is let go of


def watched(player: Player, monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """References to the payload of every chunk that is offered from now on."""
    refs: list[weakref.ref[Any]] = []
    offer = player.feed.cutting.offer

    def offered(*given: Any) -> Any:
        chunk, offered = offer(*given)
        refs.append(weakref.ref(offered.sequences["x"].raw))
        return chunk, offered

    monkeypatch.setattr(player.feed.cutting, "offer", offered)
    return refs


def alive(refs: list[weakref.ref[Any]]) -> int:
    return sum(ref() is not None for ref in refs)


def fresh(row: dict[str, Any]) -> dict[str, Any]:
    """Payload of its own for each chunk, where the source's lies in one buffer."""
    return {"k": row["k"], "x": row["x"].copy()}


@pytest.mark.parametrize(("order", "placement"), ORDERS)
def test_payload_is_gone_when_the_last_segment_of_a_chunk_is(
    order: str, placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pipeline = source([1 + i % 4 for i in range(400)]).map(f"{__name__}:fresh", schema=SCHEMA)
    player = Player(cut(pipeline, 4, 1, order, placement, capacity=8), tmp_path)
    refs = watched(player, monkeypatch)
    states = same_states if placement == "server" else no_states
    most, kept = 0, []
    while isinstance(taken := player.take(), Taken):
        assert player.save(taken, states(taken)) is None
        player.feed.take_records()
        most = max(most, alive(refs))
        kept.append(entries(player.feed))
    assert taken is Outlook.ENDED and len(refs) > 40
    assert most <= 4 and alive(refs) == 0
    assert player.feed.held == {} and max(kept[200:230]) <= max(kept[20:100])
