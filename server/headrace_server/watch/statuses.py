"""The status of a server as typed plain data, with the rule by which each field is joined.

    counts of partitions ─ joined() ─► an owner's answer ─┐
    the locator's answer ─────────────────────────────────┤
    what the supervisor knows ────────────────────────────┴─ joined() ─► status of the server

A field of several parts becomes one by the rule that stands in its type, or by those of its fields
where it is a status itself.  Without a rule the first value counts.

``metrics.py`` has the metrics of each part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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

from ..process.config import MOST_FOUND, MOST_TRAINERS

#: Values by name: of a status or of counts.  The types below declare those of a whole status.
StatusPart = Mapping[str, Any]


def added(counts: Iterable[StatusPart]) -> dict[str, Any]:
    """Add counts by name; lists are added element by element, and dicts like the whole.

    added([{"a": 1}, {"a": 2, "b": [3, 4]}])  ─►  {"a": 3, "b": [3, 4]}
    """
    total: dict[str, Any] = {}
    for some in counts:
        for name, n in some.items():
            total[name] = _sum(total.get(name), n)
    return total


def _sum(one: Any, other: Any) -> Any:
    if not one:
        return other
    if isinstance(other, Mapping):
        return added([one, other])
    if isinstance(other, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other


S = TypeVar("S")
_Rule = Callable[[Sequence[Any]], Any]

#: Trainers that a text on a drain names.
_MOST_NAMED = 8
#: Length of the text on what a feed waits for.
_LONGEST_WAITING = 1000
#: States of a feed: the first that a part is in is that of the whole.
_STATES = ("failed", "opening", "closing", "open", "ended")

# The rules


def _first(values: Sequence[object]) -> object:
    return next((value for value in values if value is not None), None)


def _state(values: Sequence[str]) -> str:
    return min(values, key=_STATES.index)


def _known(join: _Rule) -> _Rule:
    """Make the rule that joins the known values; the result is None where none is known."""
    return lambda values: join(known) if (known := [v for v in values if v is not None]) else None


def _most_of_each(values: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the greatest number of each name."""
    names = dict.fromkeys(chain.from_iterable(values))
    return {name: max(some.get(name, 0) for some in values) for name in names}


def _texts(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, values)))[:_LONGEST_WAITING]


def _buckets(values: Sequence[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    return dict(sorted(added(values).items(), key=lambda one: int(one[0])))


def _classes(values: Sequence[StatusPart]) -> dict[str, Any]:
    """Add counters by class; where targets changed, list the changes of each partition."""
    counts = added({k: v for k, v in some.items() if k != "changes"} for some in values)
    changes = [change for some in values for change in some.get("changes", ())]
    return {**counts, "changes": changes} if changes else counts


def _balance(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the rounds of all, the mean ratio of them, and the worst of the last."""
    rounds = sum(part["rounds"] for part in values)
    mean = sum(part["mean"] * part["rounds"] for part in values) / (rounds or 1)
    return {"rounds": rounds, "mean": mean, "worst": max(part["worst"] for part in values)}


def _all(values: Sequence[Sequence[S]]) -> list[S]:
    return [*chain.from_iterable(values)]


def _first_of_each(values: Sequence[Mapping[str, S]]) -> dict[str, S]:
    return {name: value for some in reversed(values) for name, value in some.items()}


def _distinct(values: Sequence[Sequence[Any]]) -> list[Any]:
    return sorted({*chain.from_iterable(values)})


def _once(kind: type[object], id: str, by: str = "") -> _Rule:
    """Make the rule that lists each part of this kind, which has an id, once; ``by``: in order."""

    def rule(values: Sequence[Sequence[StatusPart]]) -> list[object]:
        parts: dict[int | str, list[StatusPart]] = {}
        every = _all(values)
        for part in sorted(every, key=itemgetter(by)) if by else every:
            parts.setdefault(part[id], []).append(part)
        return [joined(kind, its) for its in parts.values()]

    return rule


def _feeds(values: Sequence[Mapping[str, FeedStatus]]) -> dict[str, FeedStatus]:
    names = dict.fromkeys(chain.from_iterable(values))
    return {name: joined_feed([some[name] for some in values if name in some]) for name in names}


def joined_feed(parts: Sequence[FeedStatus]) -> FeedStatus:
    """Return one status of a feed, which lists the first trainers and counts the others."""
    whole = joined(FeedStatus, parts)
    whole["trainers_more"] += len(whole["trainers"][MOST_TRAINERS:])
    del whole["trainers"][MOST_TRAINERS:]
    return whole


Count = Annotated[int, sum]
Counts = Annotated[dict[str, int], added]

# The status


class Rates(TypedDict, total=False):
    """Rates of the last seconds, of a feed or of a trainer."""

    read: float
    made: float
    rows: float
    batches: float
    bytes: float
    dropped: float
    ready: float
    stall: float | None
    awaited: float | None  # the part in which this server was awaited


class TrainerStatus(TypedDict):
    """A trainer of a feed."""

    trainer: int | str  # of several servers its id
    id: str  # the same at all owners and servers
    host: str
    name: str
    local: Annotated[bool, all]
    silent_s: Annotated[float, min]
    rank: NotRequired[int]
    requests: Annotated[NotRequired[int], sum]
    leases: Annotated[NotRequired[int], sum]
    batches: Count
    rows: Count
    bytes: Count
    wire_batches: Count
    wire_bytes: Count
    committed: Count
    stale: Count
    refused: Counts
    # the trainer reports the same to all
    blocked_s: Annotated[float, max]
    busy_s: Annotated[float, max]
    awaited_s: Annotated[float, sum]
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
    """The store of a feed's state."""

    commits: Count
    since_commit_s: Annotated[float | None, _known(min)]
    faults: Annotated[list[str], _distinct]


class VerdictStatus(TypedDict):
    level: str
    where: str
    text: str


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
    sources: Annotated[NotRequired[dict[str, int]], added]
    weights: Annotated[NotRequired[dict[str, list[float]]], added]
    balance: Annotated[NotRequired[dict[str, float]], _balance]


class FeedStatus(PartitionCounts):
    """A feed."""

    batches: Count
    rows: Count
    redelivered: Count
    stale: Count
    expired: Count
    made: Counts
    sent: Annotated[dict[str, dict[str, int]], added]
    refused: Counts
    seconds: Annotated[NotRequired[dict[str, float]], added]
    segment_standing: Annotated[NotRequired[dict[str, int]], added]
    log: Annotated[NotRequired[dict[str, int]], added]  # of the logs that it reads
    state: Annotated[str, _state]
    failure: list[str] | None
    waiting: Annotated[str, _texts]
    standing: Counts
    read: Count
    pipeline: PipelineStatus
    store: NotRequired[StoreStatus]
    partitions: Annotated[list[PartitionStatus], _once(PartitionStatus, "partition", "partition")]
    trainers: Annotated[list[TrainerStatus], _once(TrainerStatus, "id", by="trainer")]
    trainers_more: Annotated[int, max]
    rates: Rates
    verdict: VerdictStatus


class WorkerStatus(TypedDict):
    """A worker."""

    worker: int | str
    pid: int | None
    restarts: int
    doing: str
    slab_bytes: int
    slab_limit_bytes: int
    work_s: float
    rests_s: dict[str, float]
    queued_s: float  # of the work, in which it waited for a core
    remote_bytes: dict[str, int]  # of remote files, from the "store" and from the "disk"
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


class DiskStatus(TypedDict):
    """The disk of the state directory."""

    path: str
    free_bytes: int
    fault: str


class SeenServer(TypedDict):
    """The status of its server that a supervisor knows."""

    version: str
    at: float
    share: list[int]  # its number, and how many there are
    access: AccessStatus
    feeds: Annotated[dict[str, FeedStatus], _feeds]
    workers: Annotated[list[WorkerStatus], _once(WorkerStatus, "worker")]
    draining: bool
    disk: DiskStatus | None  # None without a state directory
    events: list[EventStatus]


class ServerStatus(SeenServer):
    """The status of a server."""

    state: str
    why: str
    uptime_s: float
    addresses: list[str]


class LogStatus(TypedDict):
    """The status of one partition of a log."""

    log: str
    partition: int
    closed: bool
    feeds: dict[str, dict[str, int]]  # by feed that reads it, counters
    #: The open sequences without news for longest: key, producer, steps, and seconds since.
    resting: list[tuple[str, str, int, float]]


class OwnersAnswer(TypedDict, total=False):
    """The answer of all owners to a question."""

    users: Annotated[dict[str, str], _first_of_each]
    found: Annotated[list[dict[str, Any]], lambda values: _all(values)[:MOST_FOUND]]
    logs: Annotated[list[LogStatus], _all]
    ended: Count


@cache
def _rules(kind: type[object]) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if joins := [*filter(callable, getattr(hint, "__metadata__", ()))]:
            rules[name] = joins[0]
        elif is_typeddict(inner := get_args(hint)[0] if get_origin(hint) is NotRequired else hint):
            rules[name] = partial(joined, inner)
    return rules


def joined(kind: type[S], parts: Sequence[StatusPart]) -> S:
    """Return one status of the parts, each field by the rule in its type; parts may lack some."""
    rules = _rules(cast(Hashable, kind))
    whole = {
        name: rules.get(name, _first)([part[name] for part in parts if name in part])
        for name in dict.fromkeys(chain.from_iterable(parts))
    }
    return cast(S, whole)


def described_batches(feeds: Mapping[str, FeedStatus]) -> str:
    """Return which batches of feeds trainers have in hand, for people; "" where there are none."""
    described = []
    for name, feed in feeds.items():
        leased, saving = feed["standing"]["leased"], feed["standing"]["saving"]
        hands = [
            f"trainer {user['trainer']} at {user['host'] or 'an unknown host'} has {user['leases']}"
            for user in feed["trainers"]
            if user.get("leases")
        ]
        if leased:
            among = f" ({', '.join(hands[:_MOST_NAMED])})" if hands else ""
            described.append(f"batches of feed {name!r} in trainers' hands: {leased}{among}")
        if saving:
            described.append(f"batches of feed {name!r} being stored: {saving}")
    return "; ".join(described)
