"""A loop is one epoch, a next loop continues an unfinished one, and borders lose no batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.epochs import EpochEnds, Epochs
from headrace.feed import Feed
from headrace.link import Link


class Trainer(Feed):
    """A feed that gives a trainer batches of these epochs: a batch is its epoch and its place."""

    name = "f"
    schema: Any = None

    def __init__(
        self,
        epochs: Sequence[int],
        first: int | None = 0,
        count: int | None = 3,
        across: bool = False,
    ) -> None:
        properties = {"across_batches": across, "epochs": count, "at_epoch": first}
        last = max(epochs, default=0) if count is None else count - 1
        link = SimpleNamespace(properties=properties, say=int, announced=[{}])
        link.sessions = [SimpleNamespace(epoch=0), SimpleNamespace(epoch=last)]
        self._link = cast(Link, link)
        self._epochs: Epochs | None = None
        self.plainly: Any = lambda session: session.ready.popleft()
        self.claim = self._within_epochs(self.plainly)
        deliveries = [SimpleNamespace(epoch=epoch, at=at) for at, epoch in enumerate(epochs)]
        ready = deque(SimpleNamespace(delivery=one) for one in deliveries)
        self.session: Any = SimpleNamespace(ready=ready, connected=True)
        self.asked = 0

    def __next__(self, claim: Any = None, none_yet: Any = None) -> tuple[int, int]:
        self.asked += 1
        if not self.session.ready:
            raise StopIteration
        received = (claim or self.claim)(self.session)
        return received.delivery.epoch, received.delivery.at

    def all(self) -> list[tuple[int, list[int]]]:
        return [(number, [at for _, at in batches]) for number, batches in self.epochs()]


@given(epochs=st.lists(st.integers(0, 4)).map(sorted), more=st.integers(1, 3))
def test_every_epoch_is_an_iterator_those_without_a_batch_included(
    epochs: list[int], more: int
) -> None:
    count = max(epochs, default=0) + more
    seen = Trainer(epochs, count=count).all()
    assert [number for number, _ in seen] == list(range(count))
    assert [epochs[at] for _, batches in seen for at in batches] == epochs
    assert all(epochs[at] == number for number, batches in seen for at in batches)
    trainer = Trainer(epochs, count=count)
    assert [[at for _, at in trainer] for _ in range(count)] == [batches for _, batches in seen]
    assert list(trainer) == []


def test_the_first_epoch_is_that_of_the_first_batch_where_the_feed_was_used() -> None:
    assert Trainer([3, 3, 5], first=None, count=6).all() == [(3, [0, 1]), (4, []), (5, [2])]
    assert Trainer([], first=None).all() == []
    trainer = Trainer([3, 4], first=None)
    assert [list(trainer), list(trainer), list(trainer)] == [[(3, 0)], [(4, 1)], []]


def test_a_loop_that_is_left_early_is_continued_by_the_next_one() -> None:
    trainer, seen = Trainer([0, 0, 0, 1, 1, 2]), []
    for number, batches in trainer.epochs():
        seen.append((number, next(batches)))
    assert seen == [(0, (0, 0)), (0, (0, 1)), (0, (0, 2)), (1, (1, 3)), (1, (1, 4)), (2, (2, 5))]
    trainer = Trainer([0, 0, 1])
    for _ in trainer:
        break
    assert [list(trainer), list(trainer)] == [[(0, 1)], [(1, 2)]]


def test_next_goes_on_over_a_border_and_loops_go_on_from_there() -> None:
    trainer = Trainer([0, 1, 1, 2])
    batches = iter(trainer)
    assert next(batches) == (0, 0) and next(trainer) == (1, 1)
    assert list(batches) == [], "its epoch is over"
    assert list(trainer) == [(1, 2)]
    assert next(trainer) == (2, 3)
    assert list(trainer) == []


def test_a_batch_of_an_earlier_epoch_that_came_back_comes_in_the_loop_of_now() -> None:
    """Another trainer had it, and has left."""
    assert Trainer([0, 1, 0, 1, 2]).all() == [(0, [0]), (1, [1, 2, 3]), (2, [4])]


def test_no_border_is_seen_while_the_server_is_away() -> None:
    """Waiting batches go back then, and those of an earlier epoch may come again."""
    epochs = Epochs(0)
    taken: list[int] = []
    epochs.take = lambda session: taken.append(1)
    head = SimpleNamespace(delivery=SimpleNamespace(epoch=1))
    session: Any = SimpleNamespace(ready=deque([head]), connected=False)
    assert epochs.claim_of_epoch(session) is None and taken == [1]


def test_a_loop_ends_when_every_owner_has_announced_a_later_epoch() -> None:
    epochs = Epochs(1)
    epochs.begin()
    zero, one, over = (
        SimpleNamespace(epoch=2, finished=False),
        SimpleNamespace(epoch=1, finished=False),
        SimpleNamespace(epoch=0, finished=True),
    )
    epochs.none_yet(cast(Any, [zero, one, over]))
    one.epoch = 3
    with pytest.raises(EpochEnds):
        epochs.none_yet(cast(Any, [zero, one, over]))
    assert epochs.begin() and epochs.number == 2
    epochs.none_yet(cast(Any, [over]))


def test_a_feed_whose_batches_cross_borders_has_one_loop_and_no_epochs() -> None:
    trainer = Trainer([0, 1], across=True)
    assert trainer.claim is trainer.plainly
    assert iter(trainer) is trainer
    with pytest.raises(ValueError, match=r"epochs\(\): batches of feed 'f'.*across_batches=False"):
        trainer.epochs()
