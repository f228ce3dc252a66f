"""Lanes without states: batches are made ahead, and only commits advance an example."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_server.leasing.protocol import Outlook, Slot
from headrace_server.pipeline.builder import Pipeline
from tests.examples import some
from tests.unit.changes import Model
from tests.unit.segment_player import Player, Taken

SCHEMA = {"k": hs.scalar("bytes"), "x": hs.sequence("int64")}


def free(steps: list[int], batch_size: int = 2, **more: Any) -> Pipeline:
    rows = [{"k": b"k%d" % i, "x": np.arange(t) + 100 * i} for i, t in enumerate(steps)]
    return hs.from_examples(rows, SCHEMA).batch_sequences_with_states(
        "k", ["x"], [], None, {}, 1, batch_size, order="lanes", **more
    )


def cells(taken: Taken) -> list[tuple[bytes, int]]:
    return [(key, segment) for key, segment, _ in taken.rows]


class World:
    """Trainers that take, commit and leave, and a worker that dies."""

    def __init__(self, steps: list[int], size: int, seed: int, directory: Path) -> None:
        self.steps, self.directory = steps, directory
        self.pipeline = free(steps, size, capacity=max(size, 3))
        self.random = Random(seed)
        self.model = Model()
        self.done: Counter[tuple[bytes, int]] = Counter()
        self.begin()

    def begin(self) -> None:
        self.player = Player(self.pipeline, self.directory)
        self.out: dict[Slot, list[Taken]] = {}
        self.opened = 0

    def store(self) -> None:
        for change in self.player.feed.take_records():
            self.model.apply(change)

    def open(self) -> Slot:
        self.opened += 1
        return b"trainer %d" % self.opened

    def act(self) -> None:
        act, slots = self.random.randrange(12), [*self.out]
        if not slots or (act == 0 and len(slots) < 3):
            self.out[self.open()] = []
        elif act == 1:
            slot = self.random.choice(slots)
            self.player.feed.leave(slot)
            del self.out[slot]
        elif act == 2:
            self.store()
            self.begin()
            self.player.feed.resume(self.model.saved)
        elif act < 7:
            self.commit(self.random.choice(slots))
        else:
            slot = self.random.choice(slots)
            if self.random.random() < 0.5:
                self.player.feed.prepare()
            while isinstance(made := self.player.take(slot), Taken):
                self.out[slot].append(made)
                if self.random.random() < 0.5:
                    break

    def commit(self, slot: Slot) -> None:
        if self.out[slot]:
            taken = self.out[slot].pop(0)
            assert self.player.save(taken) is None
            self.done.update(cells(taken))
            self.store()


@settings(max_examples=some(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=9),
    st.integers(1, 3),
    st.integers(0, 2**32),
    st.integers(0, 60),
)
def test_every_segment_is_done_and_none_is_lost_however_trainers_and_workers_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], size: int, seed: int, acts: int
):
    world = World(steps, size, seed, tmp_path_factory.mktemp("lanes"))
    for _ in range(acts):
        world.act()
    for slot in world.out:
        world.player.feed.leave(slot)
    world.store()
    end: object = None
    while end is not Outlook.ENDED:
        batches, end = world.player.play(lambda taken: {}, world.open())
        world.done.update(cell for taken in batches for cell in cells(taken))
        assert world.opened < 200
    wanted = {(b"k%d" % i, s) for i, count in enumerate(steps) for s in range(count)}
    assert world.done.keys() == wanted
