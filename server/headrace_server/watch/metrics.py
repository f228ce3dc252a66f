"""The table of all metrics: their names, where their values stand in a status, and their meanings.

    Metric(_feeds, "rows_dropped_total[feed,reason]", lambda feed: feed["dropped"], …)
              │                  │            └ a label for each key, beside those of the subjects
              │                  └ a counter
              └ the subjects, each with the values of its labels

A metric that has a label for each trainer, bucket or class has at most ``MOST`` of them; the others
are added up under ``other``.  Trainers that have left are in no status, and so in no metric.

``exposition`` gives all of them in the text format of Prometheus, version 0.0.4:

    # HELP name text          in help: \\ and line feed are escaped
    # TYPE name counter
    name{label="value"} 1     in values of labels: \\, line feed and " are
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from ..process.statuses import FeedStatus, ServerStatus, StoreStatus, TrainerStatus, WorkerStatus

T = TypeVar("T")

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


def _server(status: ServerStatus) -> Iterable[tuple[_Labels, ServerStatus]]:
    return [((), status)]


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
class Metric(Generic[T]):
    """One line of the table."""

    subjects: Callable[[ServerStatus], Iterable[tuple[_Labels, T]]]
    head: str
    value: Callable[[T], _Value]
    help: str

    @property
    def name(self) -> str:
        return f"headrace_{self.head.partition('[')[0]}"

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\w+", self.head)[1:])

    def samples(self, status: ServerStatus) -> Iterator[Sample]:
        """Give the values of a status that has them."""
        for labels, one in self.subjects(status):
            value = self.value(one)
            if isinstance(value, Mapping):
                for key, n in value.items():
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


def _refused(counts: FeedStatus | TrainerStatus) -> dict[str, float]:
    refused = {"stale": 0, **counts["refused"]}
    refused["stale"] += counts["stale"]
    return _bounded(refused)


def _partitions(feed: FeedStatus) -> dict[str, float]:
    partitions = feed["partitions"]
    done = sum(one["done"] for one in partitions)
    opened = sum(one["open"] for one in partitions) - done
    return {"opening": len(partitions) - opened - done, "open": opened, "done": done}


def _paired(kinds: Mapping[str, Mapping[str, float]]) -> dict[_Labels, float]:
    """Return the values of each kind, by name and kind."""
    return {(name, kind): n for kind, of in kinds.items() for name, n in _bounded(of).items()}


METRICS: tuple[Metric[Any], ...] = (
    Metric(_server, "info[version]", lambda server: {server["version"]: 1},
           "1; the release that runs."),
    Metric(_server, "up", lambda server: server["state"] not in ("starting", "failed"),
           "1 while front and workers answer, else 0."),
    Metric(_server, "share_up[share]",
           lambda server: {one["share"]: one["state"] != "away"
                           for feed in server["feeds"].values() for one in feed["shares"]},
           "1 for each server of a feed that answers, 0 for one that is away."),
    Metric(_server, "draining", lambda server: server["draining"],
           "1 once nothing more is handed out."),
    Metric(_server, "refused_total[reason]", lambda server: _bounded(server["access"]["refused"]),
           "Connections and messages that were refused: garbage, wrong keys, over a limit."),
    Metric(_feeds, "feed_state[feed,state]",
           lambda feed: {state: feed["state"] == state for state in _STATES},
           "1 for the state in which a feed is, 0 for the others."),
    Metric(_feeds, "trainers[feed]", lambda feed: len(feed["trainers"]) + feed["trainers_more"],
           "Trainers that are connected."),
    Metric(_feeds, "rows_read_total[feed]", lambda feed: feed["read"],
           "Examples that workers have read, those that were read again included."),
    Metric(_feeds, "rows_dropped_total[feed,reason]", lambda feed: _bounded(feed["dropped"]),
           "Rows that are in no batch, by the reason."),
    Metric(_feeds, "rows_quarantined[feed]", lambda feed: feed["quarantined"],
           "Examples that are left out because they killed their workers."),
    Metric(_feeds, "batches_made_total[feed]", lambda feed: feed["made"]["batches"],
           "Batches that workers have made."),
    Metric(_feeds, "rows_made_total[feed]", lambda feed: feed["made"]["rows"],
           "Rows in them; of a feed of segments, segments."),
    Metric(_feeds, "bytes_made_total[feed]", lambda feed: feed["made"]["bytes"],
           "Bytes of them in shared memory."),
    Metric(_feeds, "share_rows_made_total[feed,share]",
           lambda feed: {share["share"]: share["made"] for share in feed["shares"]},
           "Rows made, by the server's share."),
    Metric(_feeds, "share_rows_committed_total[feed,share]",
           lambda feed: {share["share"]: share["rows"] for share in feed["shares"]},
           "Rows committed, likewise."),
    Metric(_feeds, "batches_committed_total[feed]", lambda feed: feed["batches"],
           "Batches that trainers are done with."),
    Metric(_feeds, "rows_committed_total[feed]", lambda feed: feed["rows"], "Rows in them."),
    Metric(_feeds, "batches_sent_total[feed,way]", lambda feed: feed["sent"]["batches"],
           "Batches that were sent to trainers: through shared memory (shm) or by wire."),
    Metric(_feeds, "bytes_sent_total[feed,way]", lambda feed: feed["sent"]["bytes"],
           "Bytes of them."),
    Metric(_feeds, "batches_redelivered_total[feed]", lambda feed: feed["redelivered"],
           "Batches that came back from a trainer and went out again."),
    Metric(_feeds, "leases_expired_total[feed]", lambda feed: feed["expired"],
           "Leases that ended because their trainer was silent."),
    Metric(_feeds, "saves_refused_total[feed,reason]", _refused,
           "Commits and saves that did not count: stale, or by the code of the error."),
    Metric(_feeds, "batches[feed,state]", lambda feed: feed["standing"],
           "Batches that are made and not done: ready, returned (or dealt to a rank), leased to a "
           "trainer, saving."),
    Metric(_feeds, "segments[feed,state]", lambda feed: feed.get("segment_standing"),
           "Segments by what they wait for: ready (nothing), leased (the states of a trainer), "
           "full (examples that were read and find no place in the capacity)."),
    Metric(_feeds, "sequences_in_flight[feed]",
           lambda feed: feed.get("segments", {}).get("in_flight"),
           "Examples that hold a place of it."),
    Metric(_feeds, "segments_rewound_total[feed]",
           lambda feed: feed.get("segments", {}).get("rewound"),
           "Segments that were done, and went out again because their states were lost."),
    Metric(_feeds, "padding_elements_total[feed,bucket,kind]",
           lambda feed: _paired({kind: {bucket: n[at] for bucket, n in feed["padding"].items()}
                                 for at, kind in enumerate(("padded", "real"))}),
           "Elements of batches with padding (padded) and without (real)."),
    Metric(_feeds, "padding_ratio[feed,bucket]",
           lambda feed: {bucket: 1 - real / padded
                         for bucket, (padded, real) in [*feed["padding"].items()][:MOST] if padded},
           "The part of a bucket's elements that is padding."),
    Metric(_feeds, "rows_by_class_total[feed,class,outcome]",
           lambda feed: _paired({outcome: _numbered(feed["classes"].get(outcome))
                                 for outcome in ("accepted", "rejected")}),
           "Rows of a stratified feed, accepted and rejected."),
    Metric(_feeds, "rows_waiting[feed,class]",
           lambda feed: _numbered(feed["classes"].get("waiting")),
           "Rows that wait for those of other classes."),
    Metric(_feeds, "partitions[feed,state]", _partitions,
           "Partitions by what they are: opening, open, done."),
    Metric(_stores, "store_commits_total[feed]", lambda store: store["commits"],
           "Transactions of the state store."),
    Metric(_stores, "store_fault[feed]", lambda store: len(store["faults"]),
           "Faults that keep the state store from committing, such as a full disk."),
    Metric(_stores, "store_seconds_since_commit[feed]", lambda store: store["since_commit_s"],
           "How long ago the last transaction was."),
    Metric(_trainers, "trainer_info[feed,trainer,host,name,way]",
           lambda one: {(one["host"], one["name"], "shm" if one["local"] else "wire"): 1},
           "1; the host that the trainer reports, the name of its key, and the way of its bytes: "
           "shm or wire."),
    Metric(_trainers, "trainer_batches_sent_total[feed,trainer]", lambda one: one["batches"],
           "Batches that were sent, with those that were sent again."),
    Metric(_trainers, "trainer_rows_sent_total[feed,trainer]", lambda one: one["rows"],
           "Rows in them."),
    Metric(_trainers, "trainer_bytes_sent_total[feed,trainer]", lambda one: one["bytes"],
           "Bytes of them."),
    Metric(_trainers, "trainer_batches_committed_total[feed,trainer]", lambda one: one["committed"],
           "Commits and saves that counted."),
    Metric(_trainers, "trainer_saves_refused_total[feed,trainer,reason]", _refused,
           "Those that did not."),
    Metric(_trainers, "trainer_blocked_seconds_total[feed,trainer]", lambda one: one["blocked_s"],
           "How long it has waited for batches, by its own report."),
    Metric(_trainers, "trainer_awaited_seconds_total[feed,trainer,share]",
           lambda one: one["awaited_s"],
           "How long of that it has waited for the server of a share."),
    Metric(_trainers, "trainer_busy_seconds_total[feed,trainer]", lambda one: one["busy_s"],
           "How long it was busy with batches."),
    Metric(_trainers, "trainer_leases[feed,trainer]", lambda one: one.get("leases", 0),
           "Batches in its hands."),
    Metric(_trainers, "trainer_window[feed,trainer]", lambda one: one.get("window", 0),
           "Batches that it would take now."),
    Metric(_trainers, "trainer_silent_seconds[feed,trainer]", lambda one: one["silent_s"],
           "How long nothing was heard of it."),
    Metric(_workers, "worker_seconds_total[worker,doing]",
           lambda one: {"work": one["work_s"], **one["rests_s"]},
           "How long a worker worked, and how long it waited: for trainers to take batches, for "
           "states that they hold, for room in its slab."),
    Metric(_workers, "worker_slab_bytes[worker]", lambda one: one["slab_bytes"],
           "Shared memory in use by batches."),
    Metric(_workers, "worker_slab_limit_bytes[worker]", lambda one: one["slab_limit_bytes"],
           "What it may use at most."),
    Metric(_workers, "worker_restarts_total[worker]", lambda one: one["restarts"],
           "How often a worker died and was started again."),
)  # fmt: skip


def exposition(status: ServerStatus) -> str:
    """Return all metrics of a status."""
    lines = []
    for metric in METRICS:
        name, names = metric.name, metric.labels
        lines += [f"# HELP {name} {_escaped(metric.help)}", f"# TYPE {name} {metric.kind}"]
        for values, number in metric.samples(status):
            pairs = zip(names, values, strict=True)
            labels = ",".join(f'{label}="{_escaped(value, quoted=True)}"' for label, value in pairs)
            lines.append(f"{name}{'{' + labels + '}' if labels else ''} {_number(number)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    text = text.encode(errors="replace").decode()  # half a character would break the whole answer
    return text.replace('"', '\\"') if quoted else text
