"""Questions that several parties must answer before the asker gets one joined answer.

    ask(everyone, then) ─► number ─► answer(number, who, …) by each ─► take_done() ─► Gathered
                                     or it is overdue, or given up  ─►

The supervisor asks its owners, and an owner its partitions about a key.  The shells carry questions
and answers; this module counts who has answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

W = TypeVar("W")
A = TypeVar("A")
T = TypeVar("T")


@dataclass(slots=True)
class Gathered(Generic[W, A, T]):
    """The answers to one question, and the parties that have not answered."""

    then: T
    waiting: list[W]
    until: float
    answers: dict[W, A] = field(default_factory=dict)


class Asking(Generic[W, A, T]):
    """Open questions.  ``T``: the asker's continuation, or the question to ask again."""

    def __init__(self) -> None:
        self.open: dict[int, Gathered[W, A, T]] = {}  # by number
        self._count = 0

    def ask(self, everyone: Iterable[W], then: T, until: float = inf) -> int:
        """Open a question and return its number.  It is overdue at ``until``."""
        self._count += 1
        self.open[self._count] = Gathered(then, list(everyone), until)
        return self._count

    def answer(self, number: int, who: W, answer: A) -> None:
        """Take an answer; ignore repeated ones, and those of parties that were not asked."""
        question = self.open.get(number)
        if question is not None and who in question.waiting:
            question.waiting.remove(who)
            question.answers[who] = answer

    def unanswered(self, who: W) -> list[tuple[int, T]]:
        """Return the questions that a party has not answered, to ask its next life."""
        return [(n, question.then) for n, question in self.open.items() if who in question.waiting]

    def take_done(self, now: float = -inf) -> list[Gathered[W, A, T]]:
        """Return, once each, the questions that are answered by all or overdue.

        At the time ``inf`` all are overdue.
        """
        done = [n for n, one in self.open.items() if not one.waiting or one.until <= now]
        return [self.open.pop(number) for number in done]
