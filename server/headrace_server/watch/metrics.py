"""All metrics: their values in a status, and the text of them.

    docstring of FeedStatus    rows_dropped_total[reason]: Rows that are in no batch, by the reason.
                                        │        └ a label for each key, beside those of a feed
                                        └ a counter
    its value is of a field    dropped: Annotated[…, "rows_dropped_total"]
    or computed, in _VALUES    "trainers": lambda feed: …

A metric that has a label for each trainer, bucket, class or reason has at most ``MOST`` of them.
Further ones are added up under ``other``, but for trainers, which are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal, get_type_hints

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..process.option import described
from ..process.statuses import (
    DiskStatus,
    FeedStatus,
    ServerStatus,
    StoreStatus,
    TrainerStatus,
    WorkerStatus,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Label values of one kind in one feed.
MOST = 100

_STATES = ("opening", "open", "closing", "ended", "failed")

_Labels = tuple[str, ...]
#: Values of the labels, and of the metric.
Sample = tuple[_Labels, float]
#: One value, none, or one by the label (or labels) that the metric has beside those of its subject.
_Value = float | Mapping[Any, float] | None

# The subjects, each with the values of its labels


def _feeds(status: ServerStatus) -> Iterable[tuple[_Labels, FeedStatus]]:
    return [((name,), feed) for name, feed in status["feeds"].items()]


def _stores(status: ServerStatus) -> Iterable[tuple[_Labels, StoreStatus]]:
    return [(labels, feed["store"]) for labels, feed in _feeds(status) if "store" in feed]


def _trainers(status: ServerStatus) -> Iterable[tuple[_Labels, TrainerStatus]]:
    for labels, feed in _feeds(status):
        for one in feed["trainers"][:MOST]:
            yield (*labels, str(one["trainer"])), one


def _workers(status: ServerStatus) -> Iterable[tuple[_Labels, WorkerStatus]]:
    return [((str(one["worker"]),), one) for one in status["workers"]]


@dataclass(frozen=True)
class Metric:
    """One metric: a value of each of its subjects."""

    subjects: Callable[[ServerStatus], Iterable[tuple[_Labels, Any]]]
    name: str
    labels: tuple[str, ...]
    value: Callable[[Any], _Value]
    help: str

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self, status: ServerStatus) -> Iterator[Sample]:
        """Give the values of a status that has them."""
        for labels, one in self.subjects(status):
            value = self.value(one)
            if isinstance(value, Mapping):
                values = _bounded(value) if self.labels[-1] == "reason" else value
                for key, n in values.items():
                    yield (*labels, *((key,) if isinstance(key, str) else key)), float(n)
            elif value is not None:
                yield labels, float(value)


def _bounded(values: Mapping[str, float]) -> dict[str, float]:
    """Return the first values, and the sum of those that are too many."""
    listed = list(values.items())
    bounded = dict(listed[:MOST])
    if len(listed) > MOST:
        bounded["other"] = sum(value for _, value in listed[MOST:])
    return bounded


def _numbered(counts: Sequence[float] | None) -> dict[str, float]:
    return _bounded({str(i): n for i, n in enumerate(counts or ())})


def _refused(counts: FeedStatus | TrainerStatus) -> Mapping[str, float]:
    refused = {"stale": 0, **counts["refused"]}
    refused["stale"] += counts["stale"]
    return refused


def _partitions(feed: FeedStatus) -> dict[str, float]:
    partitions = feed["partitions"]
    done = sum(one["done"] for one in partitions)
    opened = sum(one["open"] for one in partitions) - done
    return {"opening": len(partitions) - opened - done, "open": opened, "done": done}


def _paired(kinds: Mapping[str, Mapping[str, float]]) -> dict[_Labels, float]:
    """Return the values of each kind, by name and kind."""
    return {(name, kind): n for kind, of in kinds.items() for name, n in _bounded(of).items()}


#: Values that are not those of one field.
_VALUES: Mapping[str, Callable[[Any], _Value]] = {
    "info": lambda server: {server["version"]: 1},
    "up": lambda server: server["state"] not in ("starting", "failed"),
    "share_up": lambda server: {
        one["share"]: one["state"] != "away"
        for feed in server["feeds"].values()
        for one in feed["shares"]
    },
    "refused_total": lambda server: server["access"]["refused"],
    "feed_state": lambda feed: {state: feed["state"] == state for state in _STATES},
    "trainers": lambda feed: len(feed["trainers"]) + feed["trainers_more"],
    "batches_made_total": lambda feed: feed["made"]["batches"],
    "rows_made_total": lambda feed: feed["made"]["rows"],
    "bytes_made_total": lambda feed: feed["made"]["bytes"],
    "share_rows_made_total": lambda feed: {one["share"]: one["made"] for one in feed["shares"]},
    "share_rows_committed_total": lambda feed: {
        one["share"]: one["rows"] for one in feed["shares"]
    },
    "batches_sent_total": lambda feed: feed["sent"]["batches"],
    "bytes_sent_total": lambda feed: feed["sent"]["bytes"],
    "saves_refused_total": _refused,
    "sequences_in_flight": lambda feed: feed.get("segments", {}).get("in_flight"),
    "segments_rewound_total": lambda feed: feed.get("segments", {}).get("rewound"),
    "padding_elements_total": lambda feed: _paired(
        {
            kind: {bucket: n[at] for bucket, n in feed["padding"].items()}
            for at, kind in enumerate(("padded", "real"))
        }
    ),
    "padding_ratio": lambda feed: {
        bucket: 1 - real / padded
        for bucket, (padded, real) in [*feed["padding"].items()][:MOST]
        if padded
    },
    "rows_by_class_total": lambda feed: _paired(
        {one: _numbered(feed["classes"].get(one)) for one in ("accepted", "rejected")}
    ),
    "rows_waiting": lambda feed: _numbered(feed["classes"].get("waiting")),
    "partitions": _partitions,
    "state_fault": lambda disk: bool(disk["fault"]),
    "store_fault": lambda store: len(store["faults"]),
    "trainer_info": lambda one: {(one["host"], one["name"], "shm" if one["local"] else "wire"): 1},
    "trainer_saves_refused_total": _refused,
    "trainer_leases": lambda one: one.get("leases", 0),
    "trainer_window": lambda one: one.get("window", 0),
    "worker_seconds_total": lambda one: {"work": one["work_s"], **one["rests_s"]},
}


def _of(kind: Any, subjects: Any, *labels: str) -> Iterator[Metric]:
    """Give the metrics of a part of a status, which its type declares."""
    fields = {
        name: field
        for field, hint in get_type_hints(kind, include_extras=True).items()
        for name in getattr(hint, "__metadata__", ())
        if isinstance(name, str)
    }
    for head, meaning in described(kind.__doc__)[1].items():
        name, *more = re.findall(r"\w+", head)
        value = _VALUES.get(name) or methodcaller("get", fields[name])
        yield Metric(subjects, f"headrace_{name}", (*labels, *more), value, meaning)


METRICS = (
    *_of(ServerStatus, lambda status: [((), status)]),
    *_of(DiskStatus, lambda status: [((), status["disk"])] if status["disk"] else []),
    *_of(FeedStatus, _feeds, "feed"),
    *_of(StoreStatus, _stores, "feed"),
    *_of(TrainerStatus, _trainers, "feed", "trainer"),
    *_of(WorkerStatus, _workers, "worker"),
)


def exposition(status: ServerStatus) -> bytes:
    """Return all metrics of a status, in the text format of Prometheus."""

    class Collected:
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            for metric in METRICS:
                made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                family = made(metric.name, metric.help, labels=metric.labels)
                for values, number in metric.samples(status):
                    family.add_metric([*map(_whole, values)], number)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry)


def _whole(text: str) -> str:
    """Replace half characters, which would break the whole answer."""
    return text.encode(errors="replace").decode()
