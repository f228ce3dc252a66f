"""Questions of the supervisor to its owners and its locator; the asking thread waits for answers.

    ask() ─► order with its number ─► owners ─► answer() by each ─► all answers
                  ▲
                  └── unanswered(): an owner's next life is asked again

The lock is the supervisor's: callers hold it, but for ``ask``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_proto.errors import HeadraceError, ServerError

from ..pipeline.declaration import Plain
from ..process.child import Message

if TYPE_CHECKING:
    from .supervisor import Supervisor

#: The locator, in the place of an owner's number.
LOCATOR = -1


@dataclass(slots=True)
class _Question:
    """An order that each of several parties answers once."""

    order: dict[str, Plain]
    waiting: list[int]  # parties that have not answered
    answers: dict[int, Message] = field(default_factory=dict)


class Asks:
    """The questions that are not answered yet."""

    def __init__(self, server: Supervisor) -> None:
        self._server = server
        self._open: dict[int, _Question] = {}  # by number
        self._numbers = itertools.count(1)

    def ask(
        self,
        whom: Iterable[int],
        order: str,
        timeout_s: float | None,
        failure: Callable[[], HeadraceError | None] = lambda: None,
        **values: Plain,
    ) -> dict[int, Message]:
        """Ask, and return the answers of all by number.  ServerError where one gives none in time.

        ``failure`` returns why the question can not be answered any more.
        """
        with self._server.lock:
            number, ended = next(self._numbers), self._server.ended
            asked = _Question({"order": order, "request": number, **values}, list(whom))
            self._open[number] = asked
            for owner, child in self._server.crew.by_number().items():
                if child is not None and owner in asked.waiting:  # its next life is asked otherwise
                    child.order(**asked.order)
            try:
                self._server.wait_for(
                    lambda: bool(not asked.waiting or ended() or failure()), timeout_s
                )
            finally:  # Ctrl-C ends the wait, too
                del self._open[number]
            error = ended() or failure()
            if error is not None:
                raise error
            if asked.waiting:
                names = [
                    "the locator" if owner == LOCATOR else f"worker {owner}"
                    for owner in asked.waiting
                ]
                text = f"{' and '.join(names)} gave no answer ({order}) within {timeout_s:g} s"
                raise ServerError(text)
            return dict(sorted(asked.answers.items()))

    def answer(self, who: int, request: int, **answer: Plain) -> None:
        """Take the answer of an owner or the locator."""
        asked = self._open.get(request)
        if asked is not None and who in asked.waiting:
            asked.waiting.remove(who)
            asked.answers[who] = answer

    def unanswered(self, owner: int) -> list[dict[str, Plain]]:
        """Return the orders that the next life of an owner is given again."""
        return [asked.order for asked in self._open.values() if owner in asked.waiting]
