"""The states of an object as a table: (event, state) → (next state, effect), or an error.

    LEASE = Transitions("lease", moves={"commit": {HELD: (SAVING, …), …}, …}, errors={…})
    COMMIT = LEASE.on("commit")              its moves alone, where every state has one
    lease.state, effect = COMMIT[lease.state]
    lease.state, effect = LEASE.follow("take back", lease.state, lease)    where that may be illegal

A table answers every event in every state, by a move or by an error with a text; a table with a
gap is refused.  docs/transitions.md shows the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

#: By state: the next state and the effect.
Moves = Mapping[str, tuple[str, Any]]


class HasHistory(Protocol):
    """An object whose states are those of a table."""

    def history(self) -> str:
        """Return its recent history, for the text of an error."""


#: Maximum number of events that an error lists.
_LONGEST_STORY = 8


class IllegalEvent(ValueError):
    """An event that the state of an object does not allow; the text gives its recent history."""


class Transitions:
    """The table of one kind of object."""

    def __init__(
        self,
        kind: str,
        states: tuple[str, ...],
        moves: Mapping[str, Moves],
        errors: Mapping[str, tuple[str, tuple[str, ...]]],
    ) -> None:
        """``errors``: by event, the end of an error's text (a name precedes it), and its states."""
        self.kind = kind
        self.states = states
        self.moves = moves
        self.errors = errors
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
        """Return the moves of an event, without states in which it is an error."""
        return self.moves[event]

    def follow(self, event: str, state: str, thing: HasHistory) -> tuple[str, Any]:
        """Return the next state and the effect; IllegalEvent where a state does not allow it."""
        move = self.moves[event].get(state)
        if move is None:
            raise IllegalEvent(f"{thing} {self.errors[event][0]}: {thing.history()}")
        return move


@dataclass(slots=True, kw_only=True)
class StateMachine:
    """An object whose states are those of a table, and that remembers its last events."""

    table: ClassVar[Transitions]
    state: str = ""  # initially the table's first state
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
