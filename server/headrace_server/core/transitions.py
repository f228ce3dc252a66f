"""The life of a thing as a table: (event, state) → (next state, effect), or why that is an error.

    LEASE = Transitions("lease", moves={"commit": {HELD: (SAVING, …), …}, …}, errors={…})
    COMMIT = LEASE.on("commit")
    try: lease.state, effect = COMMIT[lease.state]
    except KeyError: raise LEASE.illegal("commit", lease.state, name, history) from None

A table answers every event in every state, by a move or by an error that has a text; one with a
hole is refused.  docs/transitions.md shows the tables, drawn by ``drawn``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["IllegalEvent", "Moves", "Transitions"]

#: By state: the next state and the effect.
Moves = Mapping[str, tuple[str, Any]]


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
        self.events = tuple(moves)
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

    def illegal(self, event: str, state: str, name: object, history: str) -> IllegalEvent:
        """Return the error for an event that a state does not allow."""
        assert state in self._errors[event][1]
        return IllegalEvent(f"{name} {self._errors[event][0]}: {history}")

    def drawn(self) -> Iterator[str]:
        """Yield the lines of a diagram: what each event leads to in each state."""
        wide, long = max(map(len, self.states)), max(map(len, self.events))
        for state in self.states:
            for number, event in enumerate(self.events):
                start = state if number == 0 else ""
                line = f"{start:{wide}}  {event:{long}}  "
                if state in self._moves[event]:
                    following, effect = self._moves[event][state]
                    line += f"─► {following:{wide}}  {'' if effect is None else effect}"
                else:
                    line += f"✗  error: {self._errors[event][0]}"
                yield line.rstrip()
            yield ""
