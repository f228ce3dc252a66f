"""A loop is one epoch, a next loop continues an unfinished one, and borders lose no batch."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed import Epochs, Feed
from headrace.link import Link
from headrace.trainer import Trainer
from headrace_proto.messages import Given


class Joined(Feed):
    """A feed whose one owner gives a trainer batches of these epochs, and then has no more.

    A batch is its epoch and its place.
    """

    name = "f"
    schema: Any = None

    def __init__(self, epochs: Sequence[int], last: int, first: int = 0, drained: bool = False):
        self._given = [*enumerate(epochs)]
        self._last, self._drained = last, drained
        self._trainer = Trainer(1, [0], 1)
        self._trainer.welcome(0, {0: (first, 0)}, [])
        self._link = cast(Link, SimpleNamespace(say=int, announced=[{}]))
        self._epochs = Epochs(self._trainer, first > last)

    def __next__(self, within: Any = None, none_yet: Any = None) -> tuple[int, int]:
        within, trainer = within or cast(Epochs, self._epochs).enter, self._trainer
        while True:
            held = trainer.take()
            if held is not None:
                trainer.untake(held)
                within(held)
                trainer.take()
                trainer.commit(held.given.token)
                trainer.answer(0, [held.given.token])
                return held.given.turn_epoch, held.given.number
            if none_yet is not None:
                none_yet()
            if trainer.ended:
                raise StopIteration
            assert trainer.due(0)
            for request, _, epoch in trainer.outgoing(0)[3]:
                self._answer(request, epoch)

    def _answer(self, request: int, epoch: int) -> None:
        if self._given and self._given[0][1] <= epoch:
            at, of = self._given.pop(0)
            self._trainer.give(0, Given(request, at, 0, at, of, at, of, 1, 0, []), None)
        else:
            over = -1 if epoch >= self._last and not self._given else epoch
            self._trainer.over(0, request, 0, over)

    def all(self) -> list[tuple[int, list[int]]]:
        return [(number, [at for _, at in batches]) for number, batches in self.epochs()]


@given(epochs=st.lists(st.integers(0, 4)).map(sorted), more=st.integers(0, 2))
def test_every_epoch_is_an_iterator_those_without_a_batch_included(
    epochs: list[int], more: int
) -> None:
    last = max(epochs, default=0) + more
    seen = Joined(epochs, last).all()
    assert [number for number, _ in seen] == list(range(last + 1))
    assert [epochs[at] for _, batches in seen for at in batches] == epochs
    assert all(epochs[at] == number for number, batches in seen for at in batches)
    trainer = Joined(epochs, last)
    assert [[at for _, at in trainer] for _ in seen] == [batches for _, batches in seen]
    assert list(trainer) == []


def test_the_first_epoch_is_the_one_that_is_under_way_where_the_feed_was_used() -> None:
    assert Joined([3, 3, 5], 5, first=3).all() == [(3, [0, 1]), (4, []), (5, [2])]
    assert Joined([], 2, first=3).all() == []
    trainer = Joined([3, 4], 4, first=3)
    assert [list(trainer), list(trainer), list(trainer)] == [[(3, 0)], [(4, 1)], []]


def test_a_loop_that_is_left_early_is_continued_by_the_next_one() -> None:
    trainer, seen = Joined([0, 0, 0, 1, 1, 2], 2), []
    for number, batches in trainer.epochs():
        seen.append((number, next(batches)))
    assert seen == [(0, (0, 0)), (0, (0, 1)), (0, (0, 2)), (1, (1, 3)), (1, (1, 4)), (2, (2, 5))]
    trainer = Joined([0, 0, 1], 1)
    for _ in trainer:
        break
    assert [list(trainer), list(trainer)] == [[(0, 1)], [(1, 2)]]


def test_next_goes_on_over_a_border_and_loops_go_on_from_there() -> None:
    trainer = Joined([0, 1, 1, 2], 2)
    batches = iter(trainer)
    assert next(batches) == (0, 0) and next(trainer) == (1, 1)
    assert list(batches) == [], "its epoch is over"
    assert list(trainer) == [(1, 2)]
    assert next(trainer) == (2, 3)
    assert list(trainer) == []


def test_a_batch_of_an_earlier_epoch_that_came_back_comes_in_the_loop_of_now() -> None:
    """Another trainer had it, and has left."""
    assert Joined([0, 1, 0, 1, 2], 2).all() == [(0, [0]), (1, [2, 1, 3]), (2, [4])]


def test_a_feed_whose_batches_cross_borders_has_one_loop_and_no_epochs() -> None:
    trainer = Joined([0, 0], 0)
    trainer._epochs = None
    assert iter(trainer) is trainer
    with pytest.raises(ValueError, match=r"epochs\(\): batches of feed 'f'.*across_batches=False"):
        trainer.epochs()
