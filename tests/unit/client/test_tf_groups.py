"""Groups of batches count as if TensorFlow had asked for each batch by itself."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch
from headrace.batch_memory import Body
from headrace.committing import TakenBatches
from headrace.framework import NumpyFramework
from headrace.tf_groups import MOST, Groups, group_size
from headrace.trainer import Held
from headrace_proto.layout import Slot
from headrace_proto.messages import Given

STOPPED = 1 << 40


class PulledInATest:
    """The counter, and the operation that counts."""

    def __init__(self) -> None:
        self.value = 0
        self.reads = 0

    def read(self) -> int:
        self.reads += 1
        return self.value % STOPPED

    def stop(self) -> int:
        self.value += STOPPED
        return self.value % STOPPED

    def restart(self) -> None:
        self.value = 0

    def lets_through(self) -> bool:
        if self.value >= STOPPED:
            return False
        self.value += 1
        return True


class FeedInATest:
    """A feed of batches 1, 2 … and its link, with the methods that ``Groups`` uses."""

    def __init__(self, count: int, explicit: bool = False, ready: int = MOST) -> None:
        self.waiting = deque(_held(token) for token in range(1, count + 1))
        self.ready = ready
        self.committed: list[int] = []
        self.given_back: list[int] = []
        self.broken = 0
        self.shape_of: Callable[[int], tuple[int, ...]] = lambda token: (1,)
        self.left = False
        self.closed = False
        self.lock = threading.RLock()
        self.member = SimpleNamespace(explicit=explicit)
        self._link = self
        self._commits = TakenBatches(self)  # type: ignore[arg-type]
        self._blocks = SimpleNamespace(block=self._block)
        self._epochs = None

    def _plain(self, held: Held, block: np.ndarray) -> Batch:
        slots = {"x": Slot("uint8", self.shape_of(held.given.token), 0, 1)}
        return Batch(held.given, slots, block, NumpyFramework())

    def _block(self, held: Held) -> np.ndarray:
        if held.given.token == self.broken:
            raise ValueError(f"batch {self.broken} is broken")
        return np.zeros(8, np.uint8) if held.source.block is None else held.source.block

    def check_usable(self) -> None:
        if self.closed:
            raise ValueError("this feed was closed")

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._commits.on_next()
        if not self.waiting:
            raise StopIteration
        held = self.waiting.popleft()
        block = self._block(held)
        batch = self._plain(held, block)
        self._commits.take(batch, block)
        return batch

    @property
    def commits(self) -> TakenBatches:
        """The batches in the trainer's hands."""
        return self._commits

    def commit_in_hand(self) -> None:
        """Commit the batch in hand, as ``Feed.commit`` does."""
        self._commits.in_hand()

    def rewind(self) -> None:
        """Forget all batches, as where the feed is taken back."""
        self._commits = TakenBatches(self)  # type: ignore[arg-type]

    def leave(self, commit: bool) -> None:
        self.left = self.closed = True
        if commit and not self._commits.explicit:
            self._commits.in_hand()
        else:
            self._commits.give_back()

    def commit(self, token: int) -> None:
        self.committed.append(token)

    def give_back(self, token: int) -> None:
        self.given_back.append(token)

    def take_ready(self, most: int, claim: Any) -> list[Held]:
        return [self.waiting.popleft() for _ in range(min(most, self.ready - 1, len(self.waiting)))]

    def untake(self, batches: list[Held]) -> None:
        self.waiting.extendleft(reversed(batches))


def _held(token: int) -> Held:
    given = Given(token, token, 0, token, 0, token, 0, 1, 8, [], frame=1)
    return Held(given, Body(None), token, token)


class IterationInATest:
    """An iterator of TensorFlow."""

    def __init__(self, groups: Groups, counter: PulledInATest) -> None:
        self._groups = groups
        self._counter = counter
        self.numbers = groups.begun()
        self.number: int | None = None
        self._there: list[Batch] = []

    def pull(self) -> int | None:
        """The token of the next element."""
        while True:
            if self.number is None:
                self.number = next(self.numbers, None)
                if self.number is None:
                    return None
            if self._there:
                if self.number < 0 or self._counter.lets_through():
                    return self._there.pop(0).token
                self._there, self.number = [], None
                continue
            try:
                self._there = self._groups.next_group(self.number)
            except StopIteration:
                self.number = None

    @property
    def rest(self) -> int:
        """Elements that come without a call of Python."""
        return len(self._there)

    def drop(self) -> None:
        self.numbers.close()


class Site:
    """A feed, a dataset of it, and iterators."""

    def __init__(self, count: int, explicit: bool = False, ready: int = MOST) -> None:
        self.feed = FeedInATest(count, explicit, ready)
        self.counter = PulledInATest()
        self.now = 0.0
        self.groups = Groups(self.feed, self.counter, self._clock)  # type: ignore[arg-type]

    def _clock(self) -> float:
        self.now += 1e-6
        return self.now

    def iterate(self) -> IterationInATest:
        return IterationInATest(self.groups, self.counter)


def pulled(iteration: IterationInATest, count: int) -> list[int | None]:
    return [iteration.pull() for _ in range(count)]


def test_slow_training_gets_its_batches_one_by_one_and_groups_when_it_is_fast_again():
    site = Site(200)
    iteration = site.iterate()
    numbers = []
    for pause_s, count in ((0.02, 40), (0.0, 40), (0.02, 60)):
        for _ in range(count):
            site.now += pause_s
            assert iteration.pull() is not None
            numbers.append(iteration.number)
    signs = [int(np.sign(number)) for number in numbers]
    assert signs[:40] == [-1] * 40 and signs[45:80] == [1] * 35 and signs[-20:] == [-1] * 20


def test_an_iterator_that_nobody_uses_any_more_holds_nothing_back():
    site = Site(40)
    idle = site.iterate()
    pulled(idle, 5)
    assert pulled(site.iterate(), 35) == [*range(6, 41)]


def test_a_batch_that_can_not_be_read_is_an_error_when_its_turn_comes():
    site = Site(40)
    site.feed.broken = 5
    iteration = site.iterate()
    assert pulled(iteration, 4) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="batch 5 is broken"):
        iteration.pull()
    assert pulled(iteration, 35) == [*range(6, 41)]


def test_batches_of_ever_other_shapes_come_one_by_one():
    site = Site(80)
    site.feed.shape_of = lambda token: (token,)
    iteration = site.iterate()
    assert pulled(iteration, 80) == [*range(1, 81)]
    assert iteration.number is not None and iteration.number < 0


def test_a_feed_that_was_taken_back_is_iterated_from_there():
    site = Site(40)
    iteration = site.iterate()
    pulled(iteration, 5)
    site.feed.leave(commit=False)
    site.feed.left = site.feed.closed = False
    site.feed.rewind()
    site.feed.waiting = deque(_held(token) for token in range(100, 140))
    assert pulled(iteration, 21) == [*range(100, 121)]
    site.feed.commit_in_hand()
    assert site.feed.committed[-1] == 120 and not site.feed.commits.tokens


def test_memory_of_a_group_lives_no_longer_than_its_iteration():
    site = Site(40)
    iteration = site.iterate()
    pulled(iteration, 5)
    iteration.drop()
    del iteration
    gc.collect()
    assert all(isinstance(one, Held) for one in site.feed.waiting)
    assert len(site.feed.waiting) == 35


@pytest.mark.parametrize(
    ("nbytes", "handed", "used_s", "size"),
    [
        (1000, 1, 0.0001, 16),
        (1000, 16, 0.0001, 16),
        (1000, 1, 0.004, 5),
        (1000, 16, 0.064, 5),
        (1000, 1, 0.02, 1),
        (300 << 10, 1, 0.0001, 3),
        (20 << 20, 1, 0.0, 1),
        (0, 1, 0.0, 16),
    ],
)
def test_a_group_holds_some_milliseconds_of_training_and_little_memory(
    nbytes: int, handed: int, used_s: float, size: int
):
    assert group_size(nbytes, handed, used_s) == size


@given(
    st.lists(st.sampled_from(["a", "b", "drop a", "drop b", "next", "commit"]), max_size=60),
    st.booleans(),
    st.integers(1, 20),
)
def test_any_sequence_of_calls_gives_batches_in_order_and_counts_as_in_a_loop(
    steps: list[str], commit: bool, ready: int
):
    """1. Iterators pull, are dropped and begun anew, a loop takes some, and all is committed.
    2. Every batch comes once and in order.  Each request commits the batches requested before.
    """
    site = Site(1000, ready=ready)
    feed = site.feed
    iterations = {"a": site.iterate(), "b": site.iterate()}
    got: list[int | None] = []
    for step in steps:
        if step in iterations:
            got.append(iterations[step].pull())
        elif step == "next":
            got.append(next(feed).token)
        elif step == "commit":
            feed.commit_in_hand()
            assert sorted(feed.committed) == got
        else:
            name = step[-1]
            iterations[name].drop()
            iterations[name] = site.iterate()
    assert got == [*range(1, len(got) + 1)]
    feed.leave(commit)
    assert sorted(feed.committed + feed.given_back) == got
    assert feed.given_back == ([] if commit or not got else got[-1:] if feed.given_back else [])
