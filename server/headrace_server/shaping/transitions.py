"""The states of an object as a table: (event, state) → (next state, effect), or an error.

    INPUT = Transitions("partition", moves={"read": {OPEN: (READING, …), …}, …}, errors={…})
    input.state, effect = INPUT.follow("read", input.state, input)     where that may be illegal

A table answers every event in every state, by a move or by an error with a text; a table with a
gap is refused.  docs/transitions.md shows the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By state: the next state and the effect.
Moves = Mapping[str, tuple[str, Any]]


class IllegalEvent(ValueError):
    """An event that the state of an object does not allow."""


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

    def follow(self, event: str, state: str, thing: object) -> tuple[str, Any]:
        """Return the next state and the effect; IllegalEvent where a state does not allow it."""
        move = self.moves[event].get(state)
        if move is None:
            raise IllegalEvent(f"{thing} {self.errors[event][0]}: it is {state}")
        return move
