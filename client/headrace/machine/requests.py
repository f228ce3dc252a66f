"""Requests that owners answer, each by one message: part of the session machine.

    ask ──► unsent ──► its messages ──► the answer      kept until the next request of its kind
              ▲             │
              └─────────────┘ a reconnection: what is not answered is sent again

There is one request of each kind.  Another takes its place, and late answers to the one before are
ignored.  ``Link.ask`` sends a request to owners, waits for their answers and joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace_proto.messages import Answered, Drain, Flush, Snapshot, Stats, Version
from headrace_proto.record import record

#: The answer to a change, of an owner whose feed has ended.
_ENDED = Answered(0, 0, [], "server", "the feed has ended")


def _first(answers: Sequence[Answered]) -> Answered:
    """Return the first answer that is a fault, or else the first."""
    return next((answer for answer in answers if answer.code), answers[0])


@record
class Request:
    """One request."""

    call: str  # its kind: the method that a trainer calls for it
    kind: type  # of its messages
    parts: Sequence[tuple[tuple[Any, ...], list[Any]]]  # of each: its fields, and its frames
    #: Makes one answer of those of several owners.
    joined: Callable[[Sequence[Answered]], Answered] = _first
    #: The answer where the feed has ended; None where the owner still gives one.
    at_end: Answered | None = None
    #: Whether each owner of the feed is asked; else one owner answers for its whole server.
    of_each_owner: bool = True
    #: Whether the wait for the answer also raises refusals of commits.
    tells_refusals: bool = True

    def messages(self, session: int, number: int) -> list[tuple[Any, list[Any]]]:
        """Return its messages, each with the frames that follow the header."""
        return [(self.kind(session, number, *fields), frames) for fields, frames in self.parts]


def drain(cancel: bool) -> Request:
    """Close the feed's input."""
    return Request("drain", Drain, [((cancel,), [])], at_end=Answered(0, 0))


def change(call: str, kind: type, *fields: Any) -> Request:
    """Have other batches made; each owner answers with the first changed ones."""
    return Request(call, kind, [(fields, [])], _since, _ENDED)


def _since(answers: Sequence[Answered]) -> Answered:
    # The answer of an owner whose partitions have all ended is empty.
    running = [answer for answer in answers if answer.value]
    counting = running or [a for a in answers if a.text != _ENDED.text] or answers
    first = _first(counting)
    since = [pair for answer in running for pair in answer.value]
    return Answered(first.session, first.request, since, first.code, first.text)


def set_version(version: int) -> Request:
    """Tell the version of the policy that trains."""
    return Request("set_version", Version, [((version,), [])], at_end=Answered(0, 0))


def stats() -> Request:
    """Count what is ready, incomplete and in flight."""
    ended = Answered(0, 0, {})
    return Request("stats", Stats, [((), [])], _counts, ended, tells_refusals=False)


def _counts(answers: Sequence[Answered]) -> Answered:
    first = _first(answers)
    names = ("ready", "incomplete", "in_flight")
    total = {name: sum(answer.value.get(name, 0) for answer in answers) for name in names}
    return first if first.code else Answered(first.session, first.request, total)


def progress() -> Request:
    """Count what is committed.  The servers answer after the end of the feed, too."""
    return Request("progress", Stats, [((), [])], _progress, tells_refusals=False)


def _progress(answers: Sequence[Answered]) -> Answered:
    first = _first(answers)
    if first.code:
        return first
    values = [answer.value for answer in answers]
    total = {name: sum(value.get(name, 0) for value in values) for name in ("batches", "rows")}
    # An owner whose batches are all committed waits for no epoch.
    still = [value["epoch"] for value in values if value.get("open")]
    last = max(value.get("epoch", 0) for value in values)
    total |= {"epoch": min(still, default=last), "open": bool(still)}
    if all("examples" in value for value in values):
        total |= {name: sum(value[name] for value in values) for name in ("done", "examples")}
    return Answered(first.session, first.request, total)


def length(epoch: int) -> Request:
    """Count the batches that one loop over an epoch has, or over the whole feed."""
    return Request("length", Stats, [((epoch + 1,), [])], _length, tells_refusals=False)


def _length(answers: Sequence[Answered]) -> Answered:
    first = _first(answers)
    if first.code:
        return first
    found = [answer.value["length"] for answer in answers]
    reason = next((one for one in found if isinstance(one, str)), None)
    return Answered(first.session, first.request, sum(found) if reason is None else reason)


def snapshot(name: str = "", whole: bool = False) -> Request:
    """Store all of the feed's state: each server its share, under one name.

    ``whole``: every server of the feed takes part.
    """
    return Request("snapshot", Snapshot, [((name, whole), [])], of_each_owner=False)


#: States of some rows: the rows, where each state lies in a block, and the block.
StatesPart = tuple[tuple[int, ...], list[list[Any]], np.ndarray]


def flush_states(token: int, parts: Sequence[StatesPart]) -> Request:
    """Flush the states of lanes as they are after a batch."""
    said = [
        ((token, rows, columns, more > 0), [block])
        for more, (rows, columns, block) in zip(range(len(parts) - 1, -1, -1), parts, strict=True)
    ]
    return Request("flush_states", Flush, said, tells_refusals=False)


@dataclass(slots=True)
class Requests:
    """Unanswered requests, and the last answer of each kind."""

    unsent: dict[str, None] = field(default_factory=dict)  # kinds to send in this connection
    _asked: dict[str, tuple[Request, int]] = field(default_factory=dict)  # with their numbers
    _answers: dict[str, Answered] = field(default_factory=dict)
    _count: int = 0

    def ask(self, request: Request) -> None:
        """Send a request; it replaces an unanswered one of its kind."""
        self._count += 1
        self._answers.pop(request.call, None)
        self._asked[request.call] = request, self._count
        self.unsent[request.call] = None

    def answer_to(self, request: Request) -> Answered | None:
        """Return the answer to the last request of this kind, once it is there."""
        return self._answers.get(request.call)

    def receive(self, answer: Answered) -> None:
        """Take an answer of the owner."""
        for call, (_, number) in self._asked.items():
            if number == answer.request:
                del self._asked[call]
                self._answers[call] = answer
                return

    def reopened(self) -> None:
        """Note that the connection is open again: all that is unanswered is sent again."""
        self.unsent = dict.fromkeys(self._asked)

    def due(self, session: int) -> list[tuple[Any, list[Any]]]:
        """Return messages that were not sent in this connection, each with its further frames."""
        asked = [self._asked[call] for call in self.unsent if call in self._asked]
        self.unsent = {}
        return [
            message for request, number in asked for message in request.messages(session, number)
        ]
