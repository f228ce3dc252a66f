"""All metrics: their values in a status, and the text of them.

    "rows_dropped_total[reason]", "dropped", "Rows that are in no batch …"
           │           │           └ the field that is its value, or a function
           │           └ a label for each key, beside those of a feed
           └ a counter

A metric that has a label for each trainer, bucket, class or reason has at most ``MOST`` of them.
Further ones are added up under ``other``, but for trainers, which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace_proto.errors import one_line

from . import statuses
from .statuses import added

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Label values of one kind in one feed.
MOST = 100

_STATES = ("opening", "open", "closing", "ended", "failed")

_Labels = tuple[str, ...]
#: One value, none, or one by the label (or labels) that the metric has beside those of its subject.
_Value = float | Mapping[Any, float] | None


def _parts(status: statuses.ServerStatus) -> Iterator[tuple[type, _Labels, Any]]:
    """Give all parts of a status that have metrics: their types, and the values of their labels."""
    yield statuses.ServerStatus, (), status
    if status["disk"] is not None:
        yield statuses.DiskStatus, (), status["disk"]
    for name, feed in status["feeds"].items():
        yield statuses.FeedStatus, (name,), feed
        if "store" in feed:
            yield statuses.StoreStatus, (name,), feed["store"]
        for trainer in feed["trainers"][:MOST]:
            yield statuses.TrainerStatus, (name, str(trainer["trainer"])), trainer
    for worker in status["workers"]:
        yield statuses.WorkerStatus, (str(worker["worker"]),), worker


@dataclass(frozen=True)
class Metric:
    """One metric: a value of each part of a type."""

    of: type
    name: str
    labels: tuple[str, ...]
    value: Callable[[Any], _Value]
    help: str

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self, status: statuses.ServerStatus) -> Iterator[tuple[_Labels, float]]:
        """Give the values of the labels and of the metric that a status has."""
        for of, labels, part in _parts(status):
            value = self.value(part) if of is self.of else None
            if isinstance(value, Mapping):
                values = _bounded(value) if self.labels[-1] in _NAMED else value
                for key, n in values.items():
                    yield (*labels, *((key,) if isinstance(key, str) else key)), float(n)
            elif value is not None:
                yield labels, float(value)


#: Labels whose values a declaration determines, so that there may be many.
_NAMED = ("reason", "source")


def _bounded(values: statuses.StatusPart) -> dict[str, Any]:
    """Return the first values, and the sum of those that are too many."""
    listed = list(values.items())
    return added([dict(listed[:MOST]), *({"other": value} for _, value in listed[MOST:])])


def _up(server: statuses.ServerStatus) -> _Value:
    return server["state"] not in ("starting", "failed")


def _state(feed: statuses.FeedStatus) -> _Value:
    return {state: feed["state"] == state for state in _STATES}


def _connected(feed: statuses.FeedStatus) -> _Value:
    return len(feed["trainers"]) + feed["trainers_more"]


def _refused(part: statuses.FeedStatus | statuses.TrainerStatus) -> _Value:
    return added([{"stale": part["stale"]}, part["refused"]])


def _partitions(feed: statuses.FeedStatus) -> _Value:
    done, opened = (sum(part[what] for part in feed["partitions"]) for what in ("done", "open"))
    return {"opening": len(feed["partitions"]) - opened, "open": opened - done, "done": done}


def _padding(feed: statuses.FeedStatus) -> _Value:
    padding = _bounded(feed["padding"]).items()
    kinds = enumerate(("padded", "real"))
    return {(bucket, kind): both[i] for i, kind in kinds for bucket, both in padding}


def _padding_ratio(feed: statuses.FeedStatus) -> _Value:
    padding = _bounded(feed["padding"]).items()
    return {bucket: 1 - real / padded for bucket, (padded, real) in padding if padded}


def _by_class(feed: statuses.FeedStatus, counts: str) -> dict[str, float]:
    return _bounded({str(i): n for i, n in enumerate(feed["classes"].get(counts) or ())})


def _waiting(feed: statuses.FeedStatus) -> _Value:
    return _by_class(feed, "waiting")


def _outcomes(feed: statuses.FeedStatus) -> _Value:
    kinds = {kind: _by_class(feed, kind).items() for kind in ("accepted", "rejected")}
    return {(number, kind): n for kind, classes in kinds.items() for number, n in classes}


def _weights(feed: statuses.FeedStatus) -> _Value:
    sums = feed.get("weights", {}).items()
    return {name: total / count for name, (total, count) in sums if count}


def _cost_ratios(feed: statuses.FeedStatus) -> _Value:
    return {kind: n for kind, n in feed.get("balance", {}).items() if kind != "rounds"}


def _who(trainer: statuses.TrainerStatus) -> _Value:
    return {(trainer["host"], trainer["name"], "shm" if trainer["local"] else "wire"): 1}


def _doing(worker: statuses.WorkerStatus) -> _Value:
    return {"work": worker["work_s"], **worker["rests_s"]}


#: Name and further labels; the field that is its value, or a function of the part; its meaning.
_Lines = tuple[tuple[str, str | Callable[[Any], _Value], str], ...]

_SERVER: _Lines = (
    ("info[version]", lambda server: {server["version"]: 1}, "1; the release that runs."),
    ("up", _up, "1 while locator and workers answer, else 0."),
    ("draining", "draining", "1 once nothing more is handed out."),
    ("refused_total[reason]", "access.refused", "Connections and messages that were refused."),
)
_DISK: _Lines = (
    ("state_free_bytes", "free_bytes", "Room on the disk of the state directory."),
    ("state_fault", lambda disk: bool(disk["fault"]), "1 where that takes no file, else 0."),
)
_FEED: _Lines = (
    ("feed_state[state]", _state, "1 for the state in which a feed is, 0 for the others."),
    ("trainers", _connected, "Trainers that are connected."),
    ("rows_read_total", "read", "Examples that workers have read, some of them again."),
    ("rows_dropped_total[reason]", "dropped", "Rows that are in no batch, by the reason."),
    ("batches_made_total", "made.batches", "Batches that workers have made."),
    ("rows_made_total", "made.rows", "Rows in them; of a feed of segments, segments."),
    ("bytes_made_total", "made.bytes", "Bytes of them in shared memory."),
    ("batches_committed_total", "batches", "Batches that trainers are done with."),
    ("rows_committed_total", "rows", "Rows in them."),
    ("batches_sent_total[way]", "sent.batches", "Batches sent by shared memory (shm) or wire."),
    ("bytes_sent_total[way]", "sent.bytes", "Bytes of them."),
    ("batches_redelivered_total", "redelivered", "Batches that came back, and went out again."),
    ("leases_expired_total", "expired", "Leases that ended because their trainer was silent."),
    ("saves_refused_total[reason]", _refused, "Commits that were stale, or refused by an error."),
    ("batches[state]", "standing", "Batches: ready, leased to a trainer, or saving."),
    ("stage_seconds_total[stage]", "seconds", "Time that reading, and each stage, took."),
    ("segments[state]", "segment_standing", "Segments: ready, leased, full; sequences at rest."),
    ("sequences_in_flight", "segments.in_flight", "Examples that have a place of the capacity."),
    ("segments_rewound_total", "segments.rewound", "Segments sent again: their states were lost."),
    ("log[kind]", "log", "Of its logs: sequences, producers, and bytes that it has to read."),
    ("padding_elements_total[bucket,kind]", _padding, "Elements, padded and real ones alone."),
    ("padding_ratio[bucket]", _padding_ratio, "The part of a bucket's elements that is padding."),
    ("rows_by_class_total[class,outcome]", _outcomes, "Rows of a stratified feed."),
    ("examples_by_source_total[source]", "sources", "Examples drawn from each source of a mix."),
    ("weight[source]", _weights, "The part of a mix that a source is now, over all partitions."),
    ("round_cost_ratio[kind]", _cost_ratios, "Cost of the dearest rank over the mean (balance)."),
    ("rows_waiting[class]", _waiting, "Rows that wait for those of other classes."),
    ("partitions[state]", _partitions, "Partitions by what they are: opening, open, done."),
)
_STORE: _Lines = (
    ("store_commits_total", "commits", "Transactions of the state store."),
    ("store_fault", lambda store: len(store["faults"]), "Faults that keep it from committing."),
    ("store_seconds_since_commit", "since_commit_s", "How long ago the last transaction was."),
)
_TRAINER: _Lines = (
    ("trainer_info[host,name,way]", _who, "1; the host it names, its key, and the way of bytes."),
    ("trainer_batches_sent_total", "batches", "Batches that were sent, some of them again."),
    ("trainer_rows_sent_total", "rows", "Rows in them."),
    ("trainer_bytes_sent_total", "bytes", "Bytes of them."),
    ("trainer_batches_committed_total", "committed", "Commits and saves that counted."),
    ("trainer_saves_refused_total[reason]", _refused, "Those that did not."),
    ("trainer_blocked_seconds_total", "blocked_s", "How long it has waited for batches."),
    ("trainer_awaited_seconds_total", "awaited_s", "How long of that for this server."),
    ("trainer_busy_seconds_total", "busy_s", "How long it was busy with batches."),
    ("trainer_leases", "leases", "Batches in its hands."),
    ("trainer_requests", "requests", "Requests of it that have no batch yet."),
    ("trainer_silent_seconds", "silent_s", "How long nothing was heard of it."),
)
_WORKER: _Lines = (
    ("worker_seconds_total[doing]", _doing, "How long it worked, and waited for what."),
    ("worker_slab_bytes", "slab_bytes", "Shared memory in use by batches."),
    ("worker_slab_limit_bytes", "slab_limit_bytes", "Maximum of these bytes."),
    ("worker_remote_bytes_total[kind]", "remote_bytes", "Bytes of remote files, store or disk."),
    ("worker_restarts_total", "restarts", "How often a worker was replaced."),
)


def _of(kind: type, rows: _Lines, *labels: str) -> Iterator[Metric]:
    for head, value, meaning in rows:
        name, *more = re.findall(r"\w+", head)
        taken = partial(_at, value) if isinstance(value, str) else value
        yield Metric(kind, f"headrace_{name}", (*labels, *more), taken, meaning)


def _at(path: str, part: Any) -> _Value:
    for name in path.split("."):
        part = part.get(name) if part else None
    return cast(_Value, part)


METRICS = (
    *_of(statuses.ServerStatus, _SERVER),
    *_of(statuses.DiskStatus, _DISK),
    *_of(statuses.FeedStatus, _FEED, "feed"),
    *_of(statuses.StoreStatus, _STORE, "feed"),
    *_of(statuses.TrainerStatus, _TRAINER, "feed", "trainer"),
    *_of(statuses.WorkerStatus, _WORKER, "worker"),
)


def exposition(status: statuses.ServerStatus) -> bytes:
    """Return all metrics of a status, in the text format of Prometheus."""

    class Collected:
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            for metric in METRICS:
                made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = made(metric.name, metric.help, labels=metric.labels)
                for values, number in metric.samples(status):
                    # Half a surrogate pair would break the whole text.
                    family.add_metric([one_line(value) for value in values], number)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry)
