"""The life of a thing as a table: (event, state) → (next state, effect), or why that is an error.

    LEASE = Transitions("lease", moves={"commit": {HELD: (SAVING, …), …}, …}, errors={…})
    COMMIT = LEASE.on("commit")              its moves alone, where every state has one
    lease.state, effect = COMMIT[lease.state]
    lease.state, effect = LEASE.follow("take back", lease.state, lease)    where that may be illegal

A table answers every event in every state, by a move or by an error that has a text; one with a
hole is refused.  docs/transitions.md shows the tables, drawn by ``drawn``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

#: By state: the next state and the effect.
Moves = Mapping[str, tuple[str, Any]]


class Thing(Protocol):
    """An object whose life is a table."""

    def history(self) -> str:
        """Return what has happened to it, for the text of an error."""


#: Events of a life that an error lists.
_LONGEST_STORY = 8


class IllegalEvent(ValueError):
    """An event that the state of a thing does not allow; the text gives the recent history."""


class Transitions:
    """The table of one kind of thing."""

    def __init__(
        self,
        kind: str,
        states: tuple[str, ...],
        moves: Mapping[str, Moves],
        errors: Mapping[str, tuple[str, tuple[str, ...]]],
    ) -> None:
        """``errors``: by event, the end of an error that begins with a name, and its states."""
        self.kind = kind
        self.states = states
        self._moves = moves
        self._errors = errors
        for event in {**moves, **errors}:
            answered = [*moves.get(event, ()), *errors.get(event, ("", ()))[1]]
            if sorted(answered) != sorted(states):
                raise ValueError(
                    f"a {kind} needs one answer to {event!r} in each of the states {states}, and "
                    f"has them in {tuple(answered)}"
                )
        ends = {following for on in moves.values() for following, _ in on.values()}
        if unknown := ends - set(states):
            raise ValueError(f"a {kind} has moves to {unknown}, which are none of its states")

    def on(self, event: str) -> Moves:
        """Return the moves of an event; states in which it is an error are missing."""
        return self._moves[event]

    def follow(self, event: str, state: str, thing: Thing) -> tuple[str, Any]:
        """Return the next state and the effect; IllegalEvent where a state does not allow it."""
        move = self._moves[event].get(state)
        if move is None:
            raise IllegalEvent(f"{thing} {self._errors[event][0]}: {thing.history()}")
        return move

    def drawn(self) -> Iterator[str]:
        """Yield the lines of a diagram: by state the events with what they lead to, and errors."""
        wide, long = max(map(len, self.states)), max(map(len, self._moves))
        for state in self.states:
            start = state
            for event, moves in self._moves.items():
                if state in moves:
                    following, effect = moves[state]
                    arrow = f"─► {following:{wide}}  {'' if effect is None else effect}"
                    yield f"{start:{wide}}  {event:{long}}  {arrow}".rstrip()
                    start = ""
            refused: dict[str, list[str]] = {}
            for event, (text, states) in self._errors.items():
                if state in states:
                    refused.setdefault(text, []).append(event)
            for text, events in refused.items():
                yield f"{start:{wide}}  ✗ {' / '.join(events)}: error, it {text}"
                start = ""
            yield ""


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """A thing whose life is a table, and that remembers its last events."""

    table: ClassVar[Transitions]
    state: str = ""  # the table's first one at first
    story: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.state = self.state or self.table.states[0]

    def on(self, event: str) -> Any:
        """Change the state by an event; return the effect."""
        self.story = (*self.story, event)[-_LONGEST_STORY:]
        self.state, effect = self.table.follow(event, self.state, self)
        return effect

    def history(self) -> str:
        """Return the recent events, for the text of an error."""
        return ", ".join(self.story)
