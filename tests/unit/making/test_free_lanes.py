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
from headrace_server.making.partition_run import Done
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
    """Trainers that take, commit in any order, leave, and a worker that dies."""

    def __init__(self, steps: list[int], size: int, seed: int, directory: Path) -> None:
        self.steps, self.directory = steps, directory
        self.pipeline = free(steps, size, capacity=max(size, 3))
        self.random = Random(seed)
        self.model = Model()
        self.done: Counter[tuple[bytes, int]] = Counter()
        self.begin()

    def begin(self) -> None:
        self.player = Player(self.pipeline, self.directory)
        self.out: dict[int, list[Taken]] = {}
        self.opened = 0

    def store(self) -> None:
        for change in self.player.feed.commits.take_changes():
            self.model.apply(change)

    def act(self) -> None:
        act, stripes = self.random.randrange(12), [*self.out]
        if not stripes or (act == 0 and len(stripes) < 3):
            self.out[self.opened] = []
            self.opened += 1
        elif act == 1:
            stripe = self.random.choice(stripes)
            self.player.feed.commits.leave(stripe)
            del self.out[stripe]
        elif act == 2:
            self.store()
            self.begin()
            self.player.feed.commits.resume(self.model.saved)
        elif act < 7:
            self.commit(self.random.choice(stripes), in_turn=act < 6)
        else:
            stripe = self.random.choice(stripes)
            if self.random.random() < 0.5:
                self.player.feed.prepare()
            self.player.want(stripe)
            while isinstance(made := self.player.taken(self.player.step()), Taken):
                self.out[made.meta["stripe"]].append(made)
            for dry in self.player.feed.commits.take_dry():
                if not self.out[dry]:
                    del self.out[dry]

    def commit(self, stripe: int, in_turn: bool) -> None:
        if self.out[stripe]:
            place = 0 if in_turn else self.random.randrange(len(self.out[stripe]))
            taken = self.out[stripe].pop(place)
            assert self.player.save(taken) == ("", "")
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
    for stripe in world.out:
        world.player.feed.commits.leave(stripe)
    world.store()
    for stripe in range(world.opened, world.opened + 100):
        batches, end = world.player.play(lambda taken: {}, stripe)
        world.done.update(cell for taken in batches for cell in cells(taken))
        if end is Done:
            break
    assert world.player.step() is Done
    wanted = {(b"k%d" % i, s) for i, count in enumerate(steps) for s in range(count)}
    assert world.done.keys() == wanted
