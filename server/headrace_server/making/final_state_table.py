"""States at the server, where some examples begin with the final states of others.

    example ends ─► its states, kept as a stored example of a line below 0 ─► Change ─► store
    example begins ─► its defaults, then the kept states that FinalStates names for it

Entry n is stored as line -1 - n, so the store needs no further format, and snapshots and restarts
have final states as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..core.final_states import FinalStates
from ..core.slots import Segments
from ..core.stored_state import INDEX, LINE, Change, Examples, Key
from .segment_cutting import Offer, StateSource
from .state_table import StateTable, state_columns, stored_states


class FinalStateTable(StateTable):
    """A table of states, with the final states of a partition."""

    def __init__(self, states: Sequence[StateSource]) -> None:
        super().__init__(states)
        carried = [state.carry for state in states if state.carry is not None]
        by_key = next((one for one in carried if one["by"] == "final_state"), {})
        pool = next((one for one in carried if one["by"] == "from_pool"), {})
        self.final = FinalStates(
            by_key.get("most", 0), by_key.get("max_age"), size=pool.get("size", 0)
        )
        places = {state.name: place for place, state in enumerate(states)}
        self._carried = [
            (place, places[state.carry["of"]], state)
            for place, state in enumerate(states)
            if state.carry is not None
        ]
        self._kept: dict[int, list[np.ndarray]] = {}  # by entry: one row of each state

    def begin(self, batch: Segments, offers: Mapping[int, Offer]) -> None:
        super().begin(batch, offers)
        for place in (batch.segments == 0).nonzero()[0].tolist():
            offer, row = offers[int(batch.chunks[place])], int(batch.rows[place])
            for own, of, state in self._carried:
                entry = self._entry(state, offer, row, int(batch.indices[place]))
                if entry is not None:
                    self._tables[own][batch.slots[place]] = self._kept[entry][of][0]

    def _entry(self, state: StateSource, offer: Offer, row: int, index: int) -> int | None:
        """Return the final state that an example begins with, if any."""
        carry, key = state.carry, offer.keys[row]
        assert carry is not None
        if carry["by"] == "final_state":
            return self.final.latest(key, index)
        chosen, where = offer.draws[state.name][:, row]
        return self.final.drawn(where, key) if chosen < carry["probability"] else None

    def end(
        self, batch: Segments, keys: Sequence[Key], arrays: Sequence[np.ndarray]
    ) -> list[Change]:
        """Keep the states of those rows of a saved batch that end their examples."""
        if not len(batch.ended):
            return []
        change, first, rows = Change(), self.final.next, batch.last.nonzero()[0]
        for row in rows.tolist():
            change.drop += self._keep(keys[row], batch.indices[row], arrays, row)
        entries = np.arange(first, self.final.next)
        numbers = np.zeros((6, len(entries)), np.int64)
        numbers[LINE], numbers[INDEX] = -1 - entries, batch.indices[rows]
        states = state_columns([array[rows] for array in arrays])
        change.put = Examples(numbers, [keys[row] for row in rows.tolist()], states)
        return [change]

    def restore(self, stored: Examples) -> tuple[Examples, list[Change]]:
        """Load final states; return the begun examples, and a change.

        The change drops final states beyond a new bound.  They are loaded in order, so each gets
        its earlier place in both parts.
        """
        begun, kept = _split(stored)
        arrays, change = stored_states(self._states, kept), Change()
        for row in np.argsort(-kept.lines).tolist():
            key, index, entry = kept.keys[row], kept.numbers[INDEX, row], -1 - int(kept.lines[row])
            change.drop += self._keep(key, index, arrays, row, entry)
        self.final.forgotten = self.final.expired = 0
        return begun, [change] if change else []

    def _keep(
        self, key: Key, index: int, arrays: Sequence[np.ndarray], row: int, entry: int | None = None
    ) -> list[int]:
        """Keep the states in a row as a new entry, or a stored one; return the lines to drop."""
        dropped = self.final.add(key[1], int(index), entry)
        self._kept[self.final.next - 1] = [array[row : row + 1].copy() for array in arrays]
        for one in dropped:
            del self._kept[one]
        return [-1 - one for one in dropped]

    def counts(self) -> dict[str, int]:
        final = self.final
        return {
            "final_states": len(final),
            "final_states_forgotten": final.forgotten,
            "final_states_expired": final.expired,
        }


def _split(examples: Examples) -> tuple[Examples, Examples]:
    """Return the begun examples, and the final states that are stored among them."""
    final = examples.lines < 0
    if not final.any():
        return examples, Examples()
    return examples.take((~final).nonzero()[0]), examples.take(final.nonzero()[0])
