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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import get_type_hints

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..pipeline.declaration import Plain
from ..process.option import described
from . import statuses
from .statuses import added

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Label values of one kind in one feed.
MOST = 100

_STATES = ("opening", "open", "closing", "ended", "failed")

_Labels = tuple[str, ...]
#: One value, none, or one by the label (or labels) that the metric has beside those of its subject.
_Value = float | Mapping[Plain, float] | None


def _parts(status: statuses.ServerStatus) -> Iterator[tuple[type, _Labels, Plain]]:
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
    value: Callable[[Plain], _Value]
    help: str

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def samples(self, status: statuses.ServerStatus) -> Iterator[tuple[_Labels, float]]:
        """Give the values of the labels and of the metric that a status has."""
        for of, labels, one in _parts(status):
            value = self.value(one) if of is self.of else None
            if isinstance(value, Mapping):
                values = _bounded(value) if self.labels[-1] in _NAMED else value
                for key, n in values.items():
                    yield (*labels, *((key,) if isinstance(key, str) else key)), float(n)
            elif value is not None:
                yield labels, float(value)


#: Labels whose values a declaration determines, so that there may be many.
_NAMED = ("reason", "source")


def _bounded(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return the first values, and the sum of those that are too many."""
    listed = list(values.items())
    return added([dict(listed[:MOST]), *({"other": value} for _, value in listed[MOST:])])


def _by_class(feed: statuses.FeedStatus, counts: str) -> dict[str, float]:
    return _bounded({str(i): n for i, n in enumerate(feed["classes"].get(counts) or ())})


def _means(sums: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: total / count for name, (total, count) in sums.items() if count}


def _refused(one: statuses.FeedStatus | statuses.TrainerStatus) -> dict[str, float]:
    return added([{"stale": one["stale"]}, one["refused"]])


def _partitions(feed: statuses.FeedStatus) -> dict[str, float]:
    partitions = feed["partitions"]
    done = sum(one["done"] for one in partitions)
    opened = sum(one["open"] for one in partitions) - done
    return {"opening": len(partitions) - opened - done, "open": opened, "done": done}


#: Values that are not those of one field.
_VALUES: Mapping[str, Callable[[Plain], _Value]] = {
    "info": lambda server: {server["version"]: 1},
    "up": lambda server: server["state"] not in ("starting", "failed"),
    "refused_total": lambda server: server["access"]["refused"],
    "feed_state": lambda feed: {state: feed["state"] == state for state in _STATES},
    "trainers": lambda feed: len(feed["trainers"]) + feed["trainers_more"],
    "batches_made_total": lambda feed: feed["made"]["batches"],
    "rows_made_total": lambda feed: feed["made"]["rows"],
    "bytes_made_total": lambda feed: feed["made"]["bytes"],
    "batches_sent_total": lambda feed: feed["sent"]["batches"],
    "bytes_sent_total": lambda feed: feed["sent"]["bytes"],
    "saves_refused_total": _refused,
    "sequences_in_flight": lambda feed: feed.get("segments", {}).get("in_flight"),
    "segments_rewound_total": lambda feed: feed.get("segments", {}).get("rewound"),
    "padding_elements_total": lambda feed: {
        (bucket, kind): n
        for bucket, both in _bounded(feed["padding"]).items()
        for kind, n in zip(("padded", "real"), both, strict=True)
    },
    "padding_ratio": lambda feed: {
        bucket: 1 - real / padded
        for bucket, (padded, real) in _bounded(feed["padding"]).items()
        if padded
    },
    "rows_by_class_total": lambda feed: {
        (number, outcome): n
        for outcome in ("accepted", "rejected")
        for number, n in _by_class(feed, outcome).items()
    },
    "weight": lambda feed: _means(feed.get("weights", {})),
    "round_cost_ratio": lambda feed: {
        kind: ratio for kind, ratio in feed.get("balance", {}).items() if kind != "rounds"
    },
    "rows_waiting": lambda feed: _by_class(feed, "waiting"),
    "partitions": _partitions,
    "state_fault": lambda disk: bool(disk["fault"]),
    "store_fault": lambda store: len(store["faults"]),
    "trainer_info": lambda one: {(one["host"], one["name"], "shm" if one["local"] else "wire"): 1},
    "trainer_saves_refused_total": _refused,
    "worker_seconds_total": lambda one: {"work": one["work_s"], **one["rests_s"]},
}


def _of(kind: type, *labels: str) -> Iterator[Metric]:
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
        yield Metric(kind, f"headrace_{name}", (*labels, *more), value, meaning)


METRICS = (
    *_of(statuses.ServerStatus),
    *_of(statuses.DiskStatus),
    *_of(statuses.FeedStatus, "feed"),
    *_of(statuses.StoreStatus, "feed"),
    *_of(statuses.TrainerStatus, "feed", "trainer"),
    *_of(statuses.WorkerStatus, "worker"),
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
                    family.add_metric([v.encode(errors="replace").decode() for v in values], number)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry)
