"""Events from the partitions of a worker to its desks: calls of a desk, as plain data.

    send((feed, Desk.on_made, batch)) ─► the switchboard ─► desk.on_made(batch)

The switchboard drops events of a feed that has failed.  An event that depends on the store waits
there until the store has written its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, Protocol, TypeVarTuple

from headrace_proto.record import record

#: The name of a feed, a method of its desk, and all arguments of that.
Event = tuple[Any, ...]
Ts = TypeVarTuple("Ts")


class EventSink(Protocol):
    """Takes an event, whose arguments must be those of the method that it names."""

    def __call__(self, event: tuple[str, Callable[[Any, *Ts], object], *Ts], /) -> object: ...


@record
class Opened:
    """A partition is open: the schema of its batches, and how far it is."""

    partition: int
    schema: Any
    properties: dict[str, Any] = field(default_factory=dict)  # for trainers, beside the schema
    next: int = 0  # the first batch that is not done …
    turn: int = -1  # … its turn …
    epoch: int = 0  # … and the epoch, where batches end with theirs
    share: int | None = None  # examples of an epoch, where that is known
    rounds: Any = None  # rounds that an earlier owner dealt to ranks
    done: Iterable[int] = ()  # batches from ``next`` on that are done
