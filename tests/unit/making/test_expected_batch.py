"""Batches are the same whether they were prepared or not, and a wrong guess leaves no trace."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_server.making.partition_run import Blocked, Done, Resting
from headrace_server.making.segment_maker import Preparing
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


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return for each prepared batch whether it was the wanted one."""
    seen: list[bool] = []
    take = Preparing.take

    def noting(self: Preparing, batch: Any) -> Any:
        there = self._ready is not None
        found = take(self, batch)
        if there:
            seen.append(found is not None)
        return found

    monkeypatch.setattr(Preparing, "take", noting)
    return seen


def same(one: Taken, other: Taken) -> None:
    assert (one.number, one.meta) == (other.number, other.meta)
    for name, column in one.columns.items():
        assert np.array_equal(column, other.columns[name]), name


@pytest.mark.parametrize("flight", [1, 2, 3])
@pytest.mark.parametrize("kind", ORDERS)
def test_with_saves_in_turn_every_full_batch_is_as_it_was_prepared(
    kind: tuple[str, str], flight: int, guesses: list[bool], tmp_path: Path
):
    pipeline = cut([1 + i % 5 for i in range(60)], 4, kind, capacity=12)
    one, other = Player(pipeline, tmp_path), Player(pipeline, tmp_path)
    states = no_states if kind[1] == "trainer" else moved_on
    out: list[Taken] = []
    made, more = 0, flight
    end: Any = None
    while end is not Done:
        for player in (one, other):
            player.feed.commits.want(more, 0)
        while isinstance(end := one.taken(one.step()), Taken):
            same(end, other.taken(other.step()))
            out.append(end)
            made += 1
        assert other.step() is end
        one.feed.prepare()
        more = int(bool(out))
        if out:
            oldest = out.pop(0)
            for player in (one, other):
                assert player.save(oldest, states(oldest)) == ("", "")
    assert made > 20 and one.slab.used_bytes == 0
    assert all(guesses) and len(guesses) > made - 12


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
    stripes = [0]
    for _ in range(300):
        act = random.random()
        stripe = random.choice(stripes)
        if act < 0.3:
            one.feed.prepare()
        elif act < 0.6:
            for player in (one, other):
                player.want(stripe)
        elif act < 0.95 and out:
            taken = out.pop(random.randrange(min(2, len(out))))
            states = no_states(taken) if kind[1] == "trainer" else moved_on(taken)
            answers = [player.save(taken, states) for player in (one, other)]
            assert answers[0] == answers[1]
        elif act >= 0.97 and kind[0] == "lanes" and max(stripes) < 6:
            for player in (one, other):
                player.feed.commits.leave(stripe)
            stripes[stripes.index(stripe)] = max(stripes) + 1
        elif act >= 0.96 and len(stripes) < 3:
            stripes.append(max(stripes) + 1)
        while True:
            made, expected = one.step(), other.step()
            assert one.feed.commits.take_dry() == other.feed.commits.take_dry()
            taken = one.taken(made)
            if not isinstance(taken, Taken):
                assert taken is expected
                break
            same(taken, other.taken(expected))
            out.append(taken)
    assert one.feed.stats() == other.feed.stats() and one.feed.dropped() == other.feed.dropped()
    assert one.slab.used_bytes == other.slab.used_bytes == 0


def test_a_guess_that_was_wrong_is_dropped_and_after_it_none_is_made_for_a_while(
    guesses: list[bool], tmp_path: Path
):
    player = Player(cut([20] * 60, 2, ("arrival", "server"), capacity=60), tmp_path)
    out = [player.take() for _ in range(4)]
    for _ in range(10):
        player.feed.prepare()
        newest = out.pop()
        player.save(newest, moved_on(newest))
        out.append(player.take())
        assert out[-1].number == newest.number + 1 and player.slab.used_bytes == 0
    assert guesses == [False] * 3, "pauses of 2 and 4 batches"


def test_the_room_of_a_prepared_batch_is_there_for_others(tmp_path: Path):
    player = Player(cut([20] * 8, 2, ("arrival", "server")), tmp_path, slab_pages=2)
    first = player.take()
    player.feed.prepare()
    blocks = [player.slab.allocate(1) for _ in range(2)]
    assert None not in blocks and player.slab.allocate(1) is None
    player.save(first, moved_on(first))
    player.want()
    assert player.step() is Blocked
    player.feed.prepare()
    player.slab.free(blocks[0])
    taken = player.taken(player.step())
    assert taken["@sequence"].tolist() == [1, 1] and (taken["state:zero"] == 1).all()


def test_with_strings_for_states_nothing_is_prepared(guesses: list[bool], tmp_path: Path):
    rows = [{"k": b"%d" % i, "x": np.arange(9)} for i in range(4)]
    pipeline = hs.from_examples(rows, {"k": hs.scalar("bytes"), "x": hs.sequence("int64")})
    cut = pipeline.batch_sequences_with_states(
        "k", ["x"], [], None, {"word": hs.zeros((), "bytes")}, 2, 2
    )
    player = Player(cut, tmp_path)
    for word in (b"a", b"bcd", b""):
        taken = player.take()
        player.feed.prepare()
        player.save(taken, {"word": np.array([word, b"x" + word], object)})
    assert player.take()["state:word"].tolist() == [b"", b"x"] and guesses == []
    assert player.step() is Resting
