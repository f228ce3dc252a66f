"""The status of a server as typed plain data, with the rule by which each field is joined.

    counts of partitions ─ joined() ─► an owner's answer ─┐
    the locator's answer ─────────────────────────────────┤
    what the supervisor knows ────────────────────────────┴─ joined() ─► status of the server

A field of several parts becomes one by the rule that stands in its type, or by those of its fields
where it is a status itself.  Without a rule the first value counts.

The docstring of a class has the metrics of such a part (``watch/metrics.py``): name, labels beside
those of the part, meaning.  A field that is the value of one has its name in its type.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from typing import (
    Annotated,
    NotRequired,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..pipeline.declaration import Plain
from ..process.config import MOST_FOUND, MOST_TRAINERS


def added(counts: Iterable[Mapping[str, Plain]]) -> dict[str, Plain]:
    """Add counts by name; lists are added element by element, and dicts like the whole.

    added([{"a": 1}, {"a": 2, "b": [3, 4]}])  ─►  {"a": 3, "b": [3, 4]}
    """
    total: dict[str, Plain] = {}
    for some in counts:
        for name, n in some.items():
            total[name] = _sum(total.get(name), n)
    return total


def _sum(one: Plain, other: Plain) -> Plain:
    if not one:
        return other
    if isinstance(other, Mapping):
        return added([one, other])
    if isinstance(other, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return one + other


S = TypeVar("S")
_Rule = Callable[[Sequence[Plain]], Plain]

#: Trainers that a text on a drain names.
_MOST_NAMED = 8
#: Length of the text on what a feed waits for.
_LONGEST_WAITING = 1000
#: States of a feed: the first that a part is in is that of the whole.
_STATES = ("failed", "opening", "closing", "open", "ended")

# The rules


def _first(values: Sequence[Plain]) -> Plain:
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


def _classes(values: Sequence[Mapping[str, Plain]]) -> dict[str, Plain]:
    """Add counters by class; where targets changed, list the changes of each partition."""
    counts = added({k: v for k, v in some.items() if k != "changes"} for some in values)
    changes = [one for some in values for one in some.get("changes", ())]
    return {**counts, "changes": changes} if changes else counts


def _balance(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the rounds of all, the mean ratio of them, and the worst of the last."""
    rounds = sum(one["rounds"] for one in values)
    mean = sum(one["mean"] * one["rounds"] for one in values) / (rounds or 1)
    return {"rounds": rounds, "mean": mean, "worst": max(one["worst"] for one in values)}


def _all(values: Sequence[Sequence[Plain]]) -> list[Plain]:
    return [*chain.from_iterable(values)]


def _first_of_each(values: Sequence[Mapping[str, Plain]]) -> dict[str, Plain]:
    return {name: value for some in reversed(values) for name, value in some.items()}


def _distinct(values: Sequence[Sequence[Plain]]) -> list[Plain]:
    return sorted({*chain.from_iterable(values)})


def _once(kind: type[object], id: str, by: str = "") -> _Rule:
    """Make the rule that lists each part of this kind, which has an id, once; ``by``: in order."""

    def rule(values: Sequence[Sequence[Mapping[str, Plain]]]) -> list[Plain]:
        parts: dict[Plain, list[Mapping[str, Plain]]] = {}
        every = _all(values)
        for one in sorted(every, key=itemgetter(by)) if by else every:
            parts.setdefault(one[id], []).append(one)
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
    """A trainer of a feed.

    trainer_info[host,name,way]: 1; the host that the trainer reports, the name of its key, and the
      way of its bytes: shm or wire.
    trainer_batches_sent_total: Batches that were sent, with those that were sent again.
    trainer_rows_sent_total: Rows in them.
    trainer_bytes_sent_total: Bytes of them.
    trainer_batches_committed_total: Commits and saves that counted.
    trainer_saves_refused_total[reason]: Those that did not.
    trainer_blocked_seconds_total: How long it has waited for batches, by its own report.
    trainer_awaited_seconds_total: How long of that it has waited for this server.
    trainer_busy_seconds_total: How long it was busy with batches.
    trainer_leases: Batches in its hands.
    trainer_requests: Requests of it that have no batch yet.
    trainer_silent_seconds: How long nothing was heard of it.
    """

    trainer: int | str  # of several servers its id
    id: str  # the same at all owners and servers
    host: str
    name: str
    local: Annotated[bool, all]
    silent_s: Annotated[float, min, "trainer_silent_seconds"]
    rank: NotRequired[int]
    requests: Annotated[NotRequired[int], sum, "trainer_requests"]
    leases: Annotated[NotRequired[int], sum, "trainer_leases"]
    batches: Annotated[Count, "trainer_batches_sent_total"]
    rows: Annotated[Count, "trainer_rows_sent_total"]
    bytes: Annotated[Count, "trainer_bytes_sent_total"]
    wire_batches: Count
    wire_bytes: Count
    committed: Annotated[Count, "trainer_batches_committed_total"]
    stale: Count
    refused: Counts
    # the trainer reports the same to all
    blocked_s: Annotated[float, max, "trainer_blocked_seconds_total"]
    busy_s: Annotated[float, max, "trainer_busy_seconds_total"]
    awaited_s: Annotated[float, sum, "trainer_awaited_seconds_total"]
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
    """The store of a feed's state.

    store_commits_total: Transactions of the state store.
    store_fault: Faults that keep the state store from committing, such as a full disk.
    store_seconds_since_commit: How long ago the last transaction was.
    """

    commits: Annotated[Count, "store_commits_total"]
    since_commit_s: Annotated[float | None, _known(min), "store_seconds_since_commit"]
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

    dropped: Annotated[Counts, "rows_dropped_total"]
    padding: Annotated[dict[str, list[int]], _buckets]
    classes: Annotated[dict[str, Plain], _classes]
    segments: Annotated[NotRequired[dict[str, int]], added]
    sources: Annotated[NotRequired[dict[str, int]], added, "examples_by_source_total"]
    weights: Annotated[NotRequired[dict[str, list[float]]], added]
    balance: Annotated[NotRequired[dict[str, float]], _balance]


class FeedStatus(PartitionCounts):
    """A feed.

    feed_state[state]: 1 for the state in which a feed is, 0 for the others.
    trainers: Trainers that are connected.
    rows_read_total: Examples that workers have read, those that were read again included.
    rows_dropped_total[reason]: Rows that are in no batch, by the reason.
    batches_made_total: Batches that workers have made.
    rows_made_total: Rows in them; of a feed of segments, segments.
    bytes_made_total: Bytes of them in shared memory.
    batches_committed_total: Batches that trainers are done with.
    rows_committed_total: Rows in them.
    batches_sent_total[way]: Batches that were sent to trainers: through shared memory (shm) or by
      wire.
    bytes_sent_total[way]: Bytes of them.
    batches_redelivered_total: Batches that came back from a trainer and went out again.
    leases_expired_total: Leases that ended because their trainer was silent.
    saves_refused_total[reason]: Commits and saves that did not count: stale, or by the code of the
      error.
    batches[state]: Batches that are made and not done: ready, leased to a trainer, saving.
    stage_seconds_total[stage]: How long reading, and each stage, took in the lives of the workers.
    segments[state]: Segments by what they wait for: ready (nothing), leased (the states of a
      trainer), full (examples that were read and find no place in the capacity).
    sequences_in_flight: Examples that hold a place of it.
    segments_rewound_total: Segments that were done, and went out again because their states were
      lost.
    padding_elements_total[bucket,kind]: Elements of batches with padding (padded) and without
      (real).
    padding_ratio[bucket]: The part of a bucket's elements that is padding.
    rows_by_class_total[class,outcome]: Rows of a stratified feed, accepted and rejected.
    examples_by_source_total[source]: Examples that were drawn from each source of a mix.
    weight[source]: Weight of each source of a mix now, of all: the mean of the partitions.
    round_cost_ratio[kind]: Cost of the dearest rank over the mean of all, by round of a feed with
      balance: the mean since the worker began, and the worst of the last 100.
    rows_waiting[class]: Rows that wait for those of other classes.
    partitions[state]: Partitions by what they are: opening, open, done.
    """

    batches: Annotated[Count, "batches_committed_total"]
    rows: Annotated[Count, "rows_committed_total"]
    redelivered: Annotated[Count, "batches_redelivered_total"]
    stale: Count
    expired: Annotated[Count, "leases_expired_total"]
    made: Counts
    sent: Annotated[dict[str, dict[str, int]], added]
    refused: Counts
    seconds: Annotated[NotRequired[dict[str, float]], added, "stage_seconds_total"]
    segment_standing: Annotated[NotRequired[dict[str, int]], added, "segments"]
    state: Annotated[str, _state]
    failure: list[str] | None
    waiting: Annotated[str, _texts]
    standing: Annotated[Counts, "batches"]
    read: Annotated[Count, "rows_read_total"]
    pipeline: PipelineStatus
    store: NotRequired[StoreStatus]
    partitions: Annotated[list[PartitionStatus], _once(PartitionStatus, "partition", "partition")]
    trainers: Annotated[list[TrainerStatus], _once(TrainerStatus, "id", by="trainer")]
    trainers_more: Annotated[int, max]
    rates: Rates
    verdict: VerdictStatus


class WorkerStatus(TypedDict):
    """A worker.

    worker_seconds_total[doing]: How long a worker worked, and how long it waited: for trainers to
      take batches, for states that they hold, for room in its slab.
    worker_slab_bytes: Shared memory in use by batches.
    worker_slab_limit_bytes: Maximum of these bytes.
    worker_restarts_total: How often a worker was replaced: it had died, or a feed was taken back.
    """

    worker: int | str
    pid: int | None
    restarts: Annotated[int, "worker_restarts_total"]
    doing: str
    slab_bytes: Annotated[int, "worker_slab_bytes"]
    slab_limit_bytes: Annotated[int, "worker_slab_limit_bytes"]
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


class DiskStatus(TypedDict):
    """The disk of the state directory.

    state_free_bytes: Room on the disk of the state directory.
    state_fault: 1 where no file can be written to the state directory, else 0.
    """

    path: str
    free_bytes: Annotated[int, "state_free_bytes"]
    fault: str


class SeenServer(TypedDict):
    """The status of its server that a supervisor knows."""

    version: str
    at: float
    share: list[int]  # its number, and how many there are
    access: AccessStatus
    feeds: Annotated[dict[str, FeedStatus], _feeds]
    workers: Annotated[list[WorkerStatus], _once(WorkerStatus, "worker")]
    draining: Annotated[bool, "draining"]
    disk: DiskStatus | None  # None without a state directory
    events: list[EventStatus]


class ServerStatus(SeenServer):
    """The status of a server.

    info[version]: 1; the release that runs.
    up: 1 while locator and workers answer, else 0.
    draining: 1 once nothing more is handed out.
    refused_total[reason]: Connections and messages that were refused: garbage, wrong keys, over a
      limit.
    """

    state: str
    why: str
    uptime_s: float
    addresses: list[str]


class OwnersAnswer(TypedDict, total=False):
    """The answer of all owners to a question."""

    users: Annotated[dict[str, str], _first_of_each]
    found: Annotated[list[Plain], lambda values: _all(values)[:MOST_FOUND]]


@cache
def _rules(kind: type[object]) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if joins := [*filter(callable, getattr(hint, "__metadata__", ()))]:
            rules[name] = joins[0]
        elif is_typeddict(inner := get_args(hint)[0] if get_origin(hint) is NotRequired else hint):
            rules[name] = partial(joined, inner)
    return rules


def joined(kind: type[S], parts: Sequence[Plain]) -> S:
    """Return one status of the parts, each field by the rule in its type; parts may lack some."""
    rules = _rules(cast(Hashable, kind))
    whole = {
        name: rules.get(name, _first)([part[name] for part in parts if name in part])
        for name in dict.fromkeys(chain.from_iterable(parts))
    }
    return cast(S, whole)


def described_batches(feeds: Mapping[str, Plain]) -> str:
    """Return which batches of feeds trainers have in hand, for people; "" where there are none."""
    described = []
    for name, feed in feeds.items():
        leased, saving = feed["standing"]["leased"], feed["standing"]["saving"]
        hands = [
            f"trainer {one['trainer']} at {one['host'] or 'an unknown host'} has {one['leases']}"
            for one in feed["trainers"]
            if one.get("leases")
        ]
        if leased:
            among = f" ({', '.join(hands[:_MOST_NAMED])})" if hands else ""
            described.append(f"batches of feed {name!r} in trainers' hands: {leased}{among}")
        if saving:
            described.append(f"batches of feed {name!r} being stored: {saving}")
    return "; ".join(described)
