"""Which batches count as committed: by asking for the next, by name, and up to one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import Batch
from headrace.framework import Framework
from headrace.saving import TakenBatches, tokens_of
from headrace.trainer import Held
from headrace_proto.messages import Given


def given_of(token: int) -> Given:
    return Given(token, token, 0, token, 0, token, 0, 1, 8, [], frame=1)


def batch(token: int) -> Batch:
    return Batch(given_of(token), {}, np.zeros(0, np.uint8), Framework())


class Commits(TakenBatches):
    """The batches in a trainer's hands, and which of them were committed or given back."""

    def __init__(self, explicit: bool) -> None:
        self.committed: list[int] = []
        self.given_back: list[int] = []
        hands = self.hands = dict[int, Held]()
        link = SimpleNamespace(
            member=SimpleNamespace(explicit=explicit),
            lock=threading.RLock(),
            trainer=SimpleNamespace(hands=hands),
            commit=lambda token: self.committed.append(hands.pop(token).given.token),
            give_back=lambda token: self.given_back.append(hands.pop(token).given.token),
        )
        super().__init__(link)  # type: ignore[arg-type]
        self.taken = 0

    def take_batch(self, token: int) -> None:
        self.taken += 1
        held = Held(given_of(token), None, token, token, taken=self.taken, shown=True)
        self.hands[token] = held


def since(commits: Commits, call: Callable[[], object]) -> list[int]:
    """Return the batches that a call commits."""
    before = len(commits.committed)
    call()
    return commits.committed[before:]


def after(taken: int, explicit: bool = True) -> Commits:
    """Batches 1, 2 … were taken, as a loop takes them."""
    commits = Commits(explicit)
    for token in range(1, taken + 1):
        commits.on_next()
        commits.take_batch(token)
    return commits


@pytest.mark.parametrize("explicit", [True, False])
def test_a_token_of_no_batch_here_is_an_error_that_changes_nothing(explicit: bool):
    commits = after(2, explicit)
    with pytest.raises(ValueError, match="token=9 is of no batch that this trainer holds: it was"):
        commits.commit([2, 9])
    with pytest.raises(ValueError, match=r"snapshot\(upto=…\): token=9 is of no batch"):
        commits.for_snapshot(9)
    assert since(commits, lambda: commits.commit([2])) == [2]


def test_up_to_a_batch_are_those_taken_before_it_that_are_open():
    commits = after(5)
    commits.commit([2])
    assert since(commits, lambda: commits.for_snapshot(batch(4))) == [1, 3, 4]
    assert since(commits, lambda: commits.for_snapshot(4)) == []
    assert since(commits, lambda: commits.for_snapshot(None)) == []
    commits.give_back()
    assert commits.given_back == [5]


def test_batches_are_committed_in_the_order_of_taking_and_not_of_tokens():
    """A batch that another trainer gave back has an early number, and comes late."""
    commits = Commits(True)
    for token in (8, 3, 5):
        commits.take_batch(token)
    assert since(commits, lambda: commits.for_snapshot(3)) == [8, 3]


def test_no_snapshot_can_leave_out_a_batch_that_is_committed():
    commits = after(3)
    commits.commit([3])
    with pytest.raises(ValueError, match=r"0/3 \(.*\), taken after token=2, is committed .*y$"):
        commits.for_snapshot(2)
    commits = after(3, explicit=False)
    assert since(commits, lambda: commits.for_snapshot(2)) == []  # the one in hand stays in hand
    with pytest.raises(ValueError, match=r'0/2 .*, taken after token=1, .* commit="explicit"'):
        commits.for_snapshot(1)
    assert since(commits, lambda: commits.for_snapshot(3)) == [3]


@given(st.integers(1, 8), st.lists(st.integers(1, 8), max_size=8), st.booleans())
def test_every_batch_that_was_taken_is_committed_or_given_back_once(
    taken: int, named: list[int], explicit: bool
):
    commits = Commits(explicit)
    for token in range(1, taken + 1):
        commits.on_next()
        commits.take_batch(token)
    for token in named:
        if token <= taken:
            commits.commit([token])
    commits.give_back()
    assert sorted(commits.committed + commits.given_back) == list(range(1, taken + 1))


@pytest.mark.parametrize("wrong", ["7", b"7", 7.0, True, {"x": 1}, [1.5], object()])
def test_anything_else_is_named_with_its_value(wrong: Any):
    with pytest.raises(TypeError, match=r"=.* is no batch and no token, which is an integer"):
        tokens_of("batches", wrong)
