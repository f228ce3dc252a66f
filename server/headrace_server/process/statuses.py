"""The status of a server as typed plain data, with the rule by which each field is joined.

    counts of partitions ─ joined() ─► an owner's answer ─┐
    the front's answer ───────────────────────────────────┤
    workers' reports ─────────────────────────────────────┴─ joined() ─► status of server 0 ─┐
                                                                         status of server 1 ─┤
                                       that of all servers ◄─ joined() ──────────────────────┘

A field of several parts becomes one by the rule that stands in its type, or by those of its fields
where it is a status itself.  Without a rule the first value counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from typing import (
    Annotated,
    Any,
    NotRequired,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .config import MOST_FOUND, MOST_TRAINERS
from .counts import added

S = TypeVar("S")
_Rule = Callable[[Sequence[Any]], Any]

#: Length of the text on what a feed waits for.
_LONGEST_WAITING = 1000
#: States of a feed and of a server: the first that a part is in is that of the whole.
_STATES = (
    *("failed", "feeds failed", "starting", "opening", "draining", "closing", "serving"),
    *("open", "ended"),
)

# The rules


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _state(values: Sequence[str]) -> str:
    return min(values, key=_STATES.index)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _most_of_each(values: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the greatest number of each name."""
    names = dict.fromkeys(chain.from_iterable(values))
    return {name: max(some.get(name, 0) for some in values) for name in names}


def _texts(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, values)))[:_LONGEST_WAITING]


def _buckets(values: Sequence[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    return dict(sorted(added(values).items(), key=lambda one: int(one[0])))


def _classes(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add counters by class; where targets changed, list the changes of each partition."""
    counts = added({k: v for k, v in some.items() if k != "changes"} for some in values)
    changes = [one for some in values for one in some.get("changes", ())]
    return {**counts, "changes": changes} if changes else counts


def _all(values: Sequence[Sequence[Any]]) -> list[Any]:
    return [*chain.from_iterable(values)]


def _distinct(values: Sequence[Sequence[Any]]) -> list[Any]:
    return sorted({*chain.from_iterable(values)})


def _newest(values: Sequence[Sequence[EventStatus]]) -> list[EventStatus]:
    return sorted(chain.from_iterable(values), key=lambda one: -one["at"])


def _once(kind: type[Any], id: str, by: str) -> _Rule:
    """Make the rule that lists each part of this kind, which has an id, once, in an order."""

    def rule(values: Sequence[Sequence[Mapping[str, Any]]]) -> list[Any]:
        parts: dict[Any, list[Mapping[str, Any]]] = {}
        for one in sorted(chain.from_iterable(values), key=itemgetter(by)):
            parts.setdefault(one[id], []).append(one)
        return [joined(kind, its) for its in parts.values()]

    return rule


def _feeds(values: Sequence[Mapping[str, FeedStatus]]) -> dict[str, FeedStatus]:
    names = dict.fromkeys(chain.from_iterable(values))
    return {name: joined_feed([some[name] for some in values if name in some]) for name in names}


def joined_feed(parts: Sequence[FeedStatus]) -> FeedStatus:
    """Return one status of a feed, which lists the first trainers and counts the others."""
    whole = joined(FeedStatus, parts)
    trainers = whole["trainers"]
    whole["trainers"] = trainers[:MOST_TRAINERS]
    whole["trainers_more"] += len(trainers[MOST_TRAINERS:])
    return whole


Count = Annotated[int, sum]
Counts = Annotated[dict[str, int], added]

# The status


class Rates(TypedDict, total=False):
    """Rates of the last seconds, of a feed or of a trainer."""

    read: Annotated[float | None, _total]
    made: Annotated[float | None, _total]
    rows: Annotated[float | None, _total]
    batches: Annotated[float | None, _total]
    bytes: Annotated[float | None, _total]
    dropped: Annotated[float | None, _total]
    ready: Annotated[float | None, _total]
    stall: Annotated[float | None, _most]  # every server knows the same of a trainer
    # by share: part of the time in which it was awaited
    awaited: Annotated[dict[str, float], added]


class TrainerStatus(TypedDict):
    trainer: int | str  # of several servers its id
    id: str  # the same at all owners and servers
    host: str
    name: str
    local: Annotated[bool, all]
    silent_s: Annotated[float, min]
    rank: NotRequired[int]
    window: Annotated[NotRequired[int], sum]
    leases: Annotated[NotRequired[int], sum]
    batches: Count
    rows: Count
    bytes: Count
    wire_batches: Count
    wire_bytes: Count
    committed: Count
    stale: Count
    refused: Counts
    blocked_s: Annotated[float, max]  # the trainer reports the same to all
    busy_s: Annotated[float, max]
    awaited_s: Annotated[dict[str, float], added]  # by share
    rates: Rates


class PartitionStatus(TypedDict):
    partition: int
    worker: int | str
    open: bool
    done: bool
    waits: str
    number: NotRequired[int]
    epoch: NotRequired[int]
    position: NotRequired[int]
    share: NotRequired[int]


class StoreStatus(TypedDict):
    commits: Count
    since_commit_s: Annotated[float | None, _most]
    faults: Annotated[list[str], _distinct]


class VerdictStatus(TypedDict):
    level: str
    where: str
    text: str


class ShareStatus(TypedDict):
    """A feed at one of its servers."""

    share: str
    url: str  # of HTTP, where it was asked by that
    state: str
    made: int  # rows
    rows: int
    ready: int
    rates: Rates
    verdict: VerdictStatus


class PipelineStatus(TypedDict):
    source: str
    stages: list[str]
    shape: str
    partitions: int


class PartitionCounts(TypedDict):
    """Counters of partitions, over all lives of their owner."""

    dropped: Counts
    padding: Annotated[dict[str, list[int]], _buckets]
    classes: Annotated[dict[str, Any], _classes]
    segments: Annotated[NotRequired[dict[str, int]], added]


class FeedStatus(PartitionCounts):
    batches: Count
    rows: Count
    redelivered: Count
    stale: Count
    expired: Count
    made: Counts
    sent: Annotated[dict[str, dict[str, int]], added]
    refused: Counts
    segment_standing: Annotated[NotRequired[dict[str, int]], added]
    state: Annotated[str, _state]
    failure: list[str] | None
    waiting: Annotated[str, _texts]
    standing: Counts
    read: Count
    quarantined: Count
    pipeline: PipelineStatus
    store: NotRequired[StoreStatus]
    partitions: Annotated[list[PartitionStatus], _once(PartitionStatus, "partition", "partition")]
    trainers: Annotated[list[TrainerStatus], _once(TrainerStatus, "id", by="trainer")]
    trainers_more: Annotated[int, max]
    rates: Rates
    shares: Annotated[list[ShareStatus], _all]
    verdict: VerdictStatus


class WorkerStatus(TypedDict):
    worker: int | str
    pid: int | None
    restarts: int
    doing: str
    slab_bytes: int
    slab_limit_bytes: int
    work_s: float
    rests_s: dict[str, float]
    shares: dict[str, float]  # parts of its time


class AccessStatus(TypedDict):
    keys: bool
    known: list[str]
    present: Annotated[dict[str, int], _most_of_each]
    refused: Counts


class EventStatus(TypedDict):
    at: float
    kind: str
    text: str


class SeenServer(TypedDict):
    """The status of its server that a supervisor knows."""

    version: str
    at: Annotated[float, max]
    share: list[int]  # its number, and how many there are
    access: AccessStatus
    feeds: Annotated[dict[str, FeedStatus], _feeds]
    workers: Annotated[list[WorkerStatus], _all]
    draining: Annotated[bool, any]
    events: Annotated[list[EventStatus], _newest]


class ServerStatus(SeenServer):
    state: Annotated[str, _state]
    why: Annotated[str, _texts]
    uptime_s: Annotated[float, min]
    addresses: Annotated[list[str], _all]


class OwnersAnswer(TypedDict, total=False):
    """The answer of all owners to a question."""

    users: Annotated[list[str], _distinct]
    found: Annotated[list[Any], lambda values: _all(values)[:MOST_FOUND]]
    unheard: Annotated[list[int], _distinct]


@cache
def _rules(kind: Any) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if hasattr(hint, "__metadata__"):
            rules[name] = hint.__metadata__[0]
        elif is_typeddict(inner := get_args(hint)[0] if get_origin(hint) is NotRequired else hint):
            rules[name] = partial(joined, inner)
    return rules


def joined(kind: type[S], parts: Sequence[Any]) -> S:
    """Return one status of the parts, each field by the rule in its type; parts may lack some."""
    rules = _rules(cast(Hashable, kind))
    whole = {
        name: rules.get(name, _first)([part[name] for part in parts if name in part])
        for name in dict.fromkeys(chain.from_iterable(parts))
    }
    return cast(S, whole)
