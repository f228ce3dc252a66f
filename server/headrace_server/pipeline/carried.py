"""Initial states that come from examples that ended: of the same key, or of any other.

    final_state("h", default=zeros((256,)))            the state in which the key ended before
    from_pool("h", 0.2, default=zeros((256,)))         one of the last final states, for a fifth

As plain data they are their default with a ``carry`` beside it: which state, and how it is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .signatures import checking, shown


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """An initial state that other examples leave, made by ``final_state`` or ``from_pool``."""

    function: str
    name: str
    default: Any
    options: Mapping[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        return {"by": self.function, "of": self.name, **self.options}

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.function}({self.name!r}, default={shown(self.default)}, {given})"


@checking
def final_state(
    name: str, *, default: Any, most: int = 10_000, max_age: int | None = None
) -> Carried:
    """An initial state: the final state ``name`` of the last example of the same key.

    ``default`` is the initial state of a key that has none: ``zeros(shape, dtype)``, a constant or
    a column.  Each partition keeps the final states of the ``most`` keys that ended last, and does
    not use one whose example came in more than ``max_age`` examples before (None: any age).
    """
    return Carried("final_state", name, default, {"most": most, "max_age": max_age})


@checking
def from_pool(
    name: str, probability: float, *, default: Any, size: int = 1000, seed: int = 0
) -> Carried:
    """An initial state: with this probability a final state ``name`` of an example of another key.

    It is one of the last ``size`` final states of the partition, each as likely.  Otherwise, and
    while there is none, it is ``default``: ``zeros(shape, dtype)``, a constant or a column.  States
    with the same probability and ``seed`` come from the same example.
    """
    options = {"probability": probability, "size": size, "seed": seed}
    return Carried("from_pool", name, default, options)


def check_carried(states: Sequence[Mapping[str, Any]], placement: str) -> None:
    """Raise ValueError where states can not come from those that they name."""
    known = {state["name"]: state for state in states}
    bounds: dict[str, tuple[Any, str]] = {}
    for state in states:
        carry = state.get("carry")
        if carry is None:
            continue
        what = f"initial_states[{state['name']!r}]={carry['by']}({carry['of']!r})"
        if placement == "trainer":
            raise ValueError(
                f"{what} needs state_placement='server': final states that stay with trainers "
                "never come to the server"
            )
        source = known.get(carry["of"])
        if source is None:
            raise ValueError(f"{what}: there is no such state, only {', '.join(known)}")
        fields = [(one["dtype"], one["shape"]) for one in (state, source)]
        if None not in (fields[0][0], fields[1][0]) and fields[0] != fields[1]:
            (dtype, shape), (other, others) = fields
            raise ValueError(
                f"{what} is {dtype}{list(shape)} by its default, and that state is "
                f"{other}{list(others)}: they must be alike"
            )
        names = ("most", "max_age") if carry["by"] == "final_state" else ("size",)
        bound = [carry[name] for name in names]
        first, where = bounds.setdefault(carry["by"], (bound, what))
        if first != bound:
            given = ", ".join(f"{name}={carry[name]}" for name in names)
            raise ValueError(
                f"{what} has {given}, unlike {where}: all states of an example are kept together"
            )


def by_key(options: Mapping[str, Any]) -> bool:
    """Whether a shape with these options starts examples from final states of their own keys."""
    states = options.get("initial_states", ())
    return any(state.get("carry", {}).get("by") == "final_state" for state in states)
