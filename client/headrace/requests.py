"""Requests that the server answers, each by one message: part of the session machine.

    ask ──► unsaid ──► its messages ──► the answer      kept until the next request of its kind
              ▲             │
              └─────────────┘ a reconnection: what is not answered is sent again

There is one request of each kind.  Another takes its place, and late answers to the one before are
ignored.

A kind of request is a ``Request`` that makes its messages; ``Link.ask`` sends them and waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace_proto.messages import Answered, Drain, Flush, Resize, Retarget, Snapshot, Stats
from headrace_proto.record import record

_ENDED = "the feed has ended"


class Request(ABC):
    """One kind of request."""

    #: The method that a trainer calls for it, for the text of a deadline.
    call: ClassVar[str]
    #: Whether each owner of the feed is asked; else one owner answers for its whole server.
    of_each_owner: ClassVar[bool] = True
    #: Whether the wait for the answer also raises refusals of commits.
    tells_refusals: ClassVar[bool] = True

    @abstractmethod
    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        """Return its messages, each with the frames that follow the header."""

    def at_end(self, session: int) -> Answered | None:
        """Return the answer where the feed has ended; None where the server still gives one."""
        return None

    def joined(self, answers: Sequence[Answered]) -> Answered:
        """Join the answers of several owners to one."""
        return answers[0]


@record
class DrainInput(Request):
    """Close the feed's input."""

    call = "drain"

    cancel: bool

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        return [(Drain(session, number, self.cancel), [])]

    def at_end(self, session: int) -> Answered:
        return Answered(session, 0)


class _Change(Request):
    """A change of the batches that partitions make; each answers with the first changed batch."""

    def at_end(self, session: int) -> Answered:
        return Answered(session, 0, [], "server", _ENDED)

    def joined(self, answers: Sequence[Answered]) -> Answered:
        # The answer of an owner whose partitions have all ended is empty.
        running = [answer for answer in answers if answer.value]
        counting = running or [a for a in answers if a.text != _ENDED] or answers
        first = next((answer for answer in counting if answer.code), counting[0])
        since = [pair for answer in running for pair in answer.value]
        return Answered(first.session, first.request, since, first.code, first.text)


@record
class SetTargetProbs(_Change):
    """Draw classes in other proportions."""

    call = "set_target_probs"

    probs: tuple[float, ...]

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        return [(Retarget(session, number, self.probs), [])]


@record
class SetBatchSizes(_Change):
    """Make batches of other sizes."""

    call = "set_batch_size"

    sizes: tuple[int, ...]

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        return [(Resize(session, number, self.sizes), [])]


@record
class CountReady(Request):
    """Count what is ready, incomplete and in flight."""

    call = "stats"
    tells_refusals = False

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        return [(Stats(session, number), [])]

    def at_end(self, session: int) -> Answered:
        return Answered(session, 0, {})

    def joined(self, answers: Sequence[Answered]) -> Answered:
        total = dict.fromkeys(("ready", "incomplete", "in_flight"), 0)
        for answer in answers:
            for name in total:
                total[name] += answer.value.get(name, 0)
        return Answered(answers[0].session, answers[0].request, total)


@record
class ReadProgress(Request):
    """Count what is committed.  The servers answer after the end of the feed, too."""

    call = "progress"
    tells_refusals = False

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        return [(Stats(session, number), [])]

    def joined(self, answers: Sequence[Answered]) -> Answered:
        fault = next((answer for answer in answers if answer.code), None)
        if fault is not None:
            return fault
        values = [answer.value for answer in answers]
        total = {name: sum(value.get(name, 0) for value in values) for name in ("batches", "rows")}
        # An owner whose batches are all committed waits for no epoch.
        still = [value["epoch"] for value in values if value.get("open")]
        last = max(value.get("epoch", 0) for value in values)
        total |= {"epoch": min(still, default=last), "open": bool(still)}
        return Answered(answers[0].session, answers[0].request, total)


@record
class TakeSnapshot(Request):
    """Store all of the feed's state: each server its share, under one name.

    ``whole``: every server of the feed takes part.
    """

    call = "snapshot"
    of_each_owner = False

    name: str = ""
    whole: bool = False

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        return [(Snapshot(session, number, self.name, self.whole), [])]

    def joined(self, answers: Sequence[Answered]) -> Answered:
        return next((answer for answer in answers if answer.code), answers[0])


@record
class StatesPart:
    """States of some rows: where each lies in a block, and the block."""

    rows: tuple[int, ...]
    columns: list[list[Any]]
    block: Any


@record
class FlushStates(Request):
    """Flush the states of lanes as they are after a batch."""

    call = "flush_states"
    tells_refusals = False

    token: int
    parts: list[StatesPart]

    def said(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        last = len(self.parts) - 1
        return [
            (Flush(session, number, self.token, part.rows, part.columns, i < last), [part.block])
            for i, part in enumerate(self.parts)
        ]


@dataclass(slots=True)
class _Asked:
    request: Request
    number: int
    said: bool = False  # in this connection


@dataclass(slots=True)
class Requests:
    """Unanswered requests, and the last answer of each kind."""

    due: bool = False  # whether a message is to be sent
    _asked: dict[type, _Asked] = field(default_factory=dict)  # by the type of the request
    _answers: dict[type, Answered] = field(default_factory=dict)
    _count: int = 0

    def ask(self, request: Request) -> None:
        """Send a request; it replaces an unanswered one of its kind."""
        self._count += 1
        self._answers.pop(type(request), None)
        self._asked[type(request)] = _Asked(request, self._count)
        self.due = True

    def answer_to(self, request: Request) -> Answered | None:
        """Return the answer to the last request of this kind, once it is there."""
        return self._answers.get(type(request))

    def receive(self, message: Any) -> None:
        """Take a message of the server, which may be an answer."""
        if isinstance(message, Answered):
            for kind, asked in self._asked.items():
                if asked.number == message.request:
                    del self._asked[kind]
                    self._answers[kind] = message
                    return

    def reopened(self) -> None:
        """Note that the connection is open again: all that is unanswered is sent again."""
        for asked in self._asked.values():
            asked.said = False
        self.due = bool(self._asked)

    def to_say(self, session: int) -> list[tuple[Any, list[Any]]]:
        """Return messages that were not sent in this connection, each with its further frames."""
        self.due = False
        messages: list[tuple[Any, list[Any]]] = []
        for asked in self._asked.values():
            if not asked.said:
                asked.said = True
                messages += asked.request.said(session, asked.number)
        return messages
