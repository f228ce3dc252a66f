"""The table of all metrics: names, kinds, labels, meanings, and where their values stand.

A metric that has a label for each trainer, bucket or class has at most ``MOST`` of them; what is
beyond is added up under ``other``.  Trainers that have left are in no status, so they are gone from
here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["METRICS", "MOST", "Metric"]

#: Label values of one kind in one feed.
MOST = 100

Status = Mapping[str, Any]
#: Values of the labels, and of the metric.
Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True)
class Metric:
    """One line of the table."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Status], Iterable[Sample]]


def _server(value: Callable[[Status], float]) -> Callable[[Status], Iterable[Sample]]:
    return lambda status: [((), float(value(status)))]


def _feeds(status: Status) -> Iterator[tuple[str, Any]]:
    yield from status["feeds"].items()


def _of_feed(
    value: Callable[[Any], float | None],
) -> Callable[[Status], Iterable[Sample]]:
    """One value of each feed that has it."""

    def samples(status: Status) -> Iterator[Sample]:
        for feed, told in _feeds(status):
            found = value(told)
            if found is not None:
                yield (feed,), float(found)

    return samples


def _by(
    values: Callable[[Any], Mapping[str, float]],
) -> Callable[[Status], Iterable[Sample]]:
    """Values of each feed by one more label."""

    def samples(status: Status) -> Iterator[Sample]:
        for feed, told in _feeds(status):
            for label, value in _bounded(values(told)).items():
                yield (feed, label), float(value)

    return samples


def _bounded(values: Mapping[str, float]) -> dict[str, float]:
    """The first of them, and the sum of those that are too many."""
    listed = list(values.items())
    bounded = dict(listed[:MOST])
    if len(listed) > MOST:
        bounded["other"] = sum(value for _, value in listed[MOST:])
    return bounded


def _refused_at_the_door(status: Status) -> Iterator[Sample]:
    for reason, n in _bounded(status["access"]["refused"]).items():
        yield (reason,), float(n)


def _state(told: Any) -> dict[str, float]:
    states = ("opening", "open", "closing", "ended", "failed")
    return {state: float(told["state"] == state) for state in states}


def _refused(told: Any) -> dict[str, float]:
    refused = {"stale": told["stale"], **{c: n for c, n in told["refused"].items() if c != "stale"}}
    refused["stale"] += told["refused"].get("stale", 0)
    return refused


def _partitions(told: Any) -> dict[str, float]:
    done = sum(partition["done"] for partition in told["partitions"])
    opened = sum(partition["open"] for partition in told["partitions"]) - done
    return {"opening": len(told["partitions"]) - opened - done, "open": opened, "done": done}


def _segments(told: Any) -> dict[str, float]:
    return dict(told.get("segment_standing", {}))


def _padding(status: Status) -> Iterator[Sample]:
    for feed, told in _feeds(status):
        for kind, at in (("padded", 0), ("real", 1)):
            by_bucket = {bucket: counts[at] for bucket, counts in told["padding"].items()}
            for bucket, n in _bounded(by_bucket).items():
                yield (feed, bucket, kind), float(n)


def _padding_ratio(status: Status) -> Iterator[Sample]:
    for feed, told in _feeds(status):
        for bucket, (padded, real) in list(told["padding"].items())[:MOST]:
            if padded:
                yield (feed, bucket), 1 - real / padded


def _classes(status: Status) -> Iterator[Sample]:
    for feed, told in _feeds(status):
        for outcome in ("accepted", "rejected"):
            for name, n in _bounded(_numbered(told["classes"].get(outcome))).items():
                yield (feed, name, outcome), float(n)


def _numbered(counts: Sequence[float] | None) -> dict[str, float]:
    return {str(i): n for i, n in enumerate(counts or ())}


def _of_store(told: Any, name: str) -> float | None:
    return None if "store" not in told else told["store"][name]


def _trainers(
    value: Callable[[Any], float],
) -> Callable[[Status], Iterable[Sample]]:
    """A value of each trainer.  One that is present in no feed any more is not told of."""

    def samples(status: Status) -> Iterator[Sample]:
        for feed, told in _feeds(status):
            for trainer in told["trainers"][:MOST]:
                yield (feed, str(trainer["trainer"])), float(value(trainer))

    return samples


def _trainer_info(status: Status) -> Iterator[Sample]:
    for feed, told in _feeds(status):
        for trainer in told["trainers"][:MOST]:
            way = "shm" if trainer["local"] else "wire"
            yield (feed, str(trainer["trainer"]), trainer["host"], trainer["name"], way), 1.0


def _trainer_refused(status: Status) -> Iterator[Sample]:
    for feed, told in _feeds(status):
        for trainer in told["trainers"][:MOST]:
            for reason, n in _bounded(_refused(trainer)).items():
                yield (feed, str(trainer["trainer"]), reason), float(n)


def _workers(
    value: Callable[[Any], float],
) -> Callable[[Status], Iterable[Sample]]:
    return lambda status: [((str(w["worker"]),), float(value(w))) for w in status["workers"]]


def _worker_seconds(status: Status) -> Iterator[Sample]:
    for worker in status["workers"]:
        for doing, seconds in {"work": worker["work_s"], **worker["rests_s"]}.items():
            yield (str(worker["worker"]), doing), float(seconds)


_FEED = ("feed",)
_TRAINER = ("feed", "trainer")
_WORKER = ("worker",)

METRICS: tuple[Metric, ...] = (
    Metric("headrace_info", "gauge", ("version",), "1; the release that runs.",
           lambda status: [((status["version"],), 1.0)]),
    Metric("headrace_up", "gauge", (), "1 while front and workers answer, else 0.",
           _server(lambda s: s["state"] not in ("starting", "failed"))),
    Metric("headrace_draining", "gauge", (), "1 once nothing more is handed out.",
           _server(lambda s: s["draining"])),
    Metric("headrace_refused_total", "counter", ("reason",),
           "Connections and messages that were refused: garbage, wrong keys, over a limit.",
           _refused_at_the_door),
    Metric("headrace_feed_state", "gauge", ("feed", "state"),
           "1 for the state in which a feed is, 0 for the others.", _by(_state)),
    Metric("headrace_trainers", "gauge", _FEED, "Trainers that are connected.",
           _of_feed(lambda f: len(f["trainers"]) + f["trainers_more"])),
    Metric("headrace_rows_read_total", "counter", _FEED,
           "Examples that workers have read, those that were read again included.",
           _of_feed(lambda f: f["read"])),
    Metric("headrace_rows_dropped_total", "counter", ("feed", "reason"),
           "Rows that are in no batch, by the reason.", _by(lambda f: f["dropped"])),
    Metric("headrace_rows_quarantined", "gauge", _FEED,
           "Examples that are left out because they killed their workers.",
           _of_feed(lambda f: f["quarantined"])),
    Metric("headrace_batches_made_total", "counter", _FEED, "Batches that workers have made.",
           _of_feed(lambda f: f["made"]["batches"])),
    Metric("headrace_rows_made_total", "counter", _FEED,
           "Rows in them; of a feed of segments, segments.", _of_feed(lambda f: f["made"]["rows"])),
    Metric("headrace_bytes_made_total", "counter", _FEED, "Bytes of them in shared memory.",
           _of_feed(lambda f: f["made"]["bytes"])),
    Metric("headrace_batches_committed_total", "counter", _FEED,
           "Batches that trainers are done with.", _of_feed(lambda f: f["batches"])),
    Metric("headrace_rows_committed_total", "counter", _FEED, "Rows in them.",
           _of_feed(lambda f: f["rows"])),
    Metric("headrace_batches_redelivered_total", "counter", _FEED,
           "Batches that came back from a trainer and went out again.",
           _of_feed(lambda f: f["redelivered"])),
    Metric("headrace_leases_expired_total", "counter", _FEED,
           "Leases that ended because their trainer was silent.", _of_feed(lambda f: f["expired"])),
    Metric("headrace_saves_refused_total", "counter", ("feed", "reason"),
           "Commits and saves that did not count: stale, or by the code of the error.",
           _by(_refused)),
    Metric("headrace_batches", "gauge", ("feed", "state"),
           "Batches that are made and not done: ready, returned (or dealt to a rank), leased to "
           "a trainer, saving.", _by(lambda f: f["standing"])),
    Metric("headrace_segments", "gauge", ("feed", "state"),
           "Segments by what they wait for: ready (nothing), leased (the states of a trainer), "
           "full (examples that were read and find no place in the capacity).", _by(_segments)),
    Metric("headrace_sequences_in_flight", "gauge", _FEED, "Examples that hold a place of it.",
           _of_feed(lambda f: f.get("segments", {}).get("in_flight"))),
    Metric("headrace_segments_rewound_total", "counter", _FEED,
           "Segments that were done, and went out again because their states were lost.",
           _of_feed(lambda f: f.get("segments", {}).get("rewound"))),
    Metric("headrace_padding_elements_total", "counter", ("feed", "bucket", "kind"),
           "Elements of batches with padding (padded) and without (real).", _padding),
    Metric("headrace_padding_ratio", "gauge", ("feed", "bucket"),
           "The part of a bucket's elements that is padding.", _padding_ratio),
    Metric("headrace_rows_by_class_total", "counter", ("feed", "class", "outcome"),
           "Rows of a stratified feed, accepted and rejected.", _classes),
    Metric("headrace_rows_waiting", "gauge", ("feed", "class"),
           "Rows that wait for those of other classes.",
           _by(lambda f: _numbered(f["classes"].get("waiting")))),
    Metric("headrace_partitions", "gauge", ("feed", "state"),
           "Partitions by what they are: opening, open, done.", _by(_partitions)),
    Metric("headrace_store_commits_total", "counter", _FEED,
           "Transactions of the state store.", _of_feed(lambda f: _of_store(f, "commits"))),
    Metric("headrace_store_fault", "gauge", _FEED,
           "Faults that keep the state store from committing, such as a full disk.",
           _of_feed(lambda f: len(f["store"]["faults"]) if "store" in f else None)),
    Metric("headrace_store_seconds_since_commit", "gauge", _FEED,
           "How long ago the last transaction was.",
           _of_feed(lambda f: _of_store(f, "since_commit_s"))),
    Metric("headrace_trainer_info", "gauge", ("feed", "trainer", "host", "name", "way"),
           "1; where a trainer says that it runs, whose key it has, and how bytes get there: shm "
           "or wire.",
           _trainer_info),
    Metric("headrace_trainer_batches_sent_total", "counter", _TRAINER,
           "Batches that were sent, with those that were sent again.",
           _trainers(lambda t: t["batches"])),
    Metric("headrace_trainer_rows_sent_total", "counter", _TRAINER, "Rows in them.",
           _trainers(lambda t: t["rows"])),
    Metric("headrace_trainer_bytes_sent_total", "counter", _TRAINER, "Bytes of them.",
           _trainers(lambda t: t["bytes"])),
    Metric("headrace_trainer_batches_committed_total", "counter", _TRAINER,
           "Commits and saves that counted.", _trainers(lambda t: t["committed"])),
    Metric("headrace_trainer_saves_refused_total", "counter", (*_TRAINER, "reason"),
           "Those that did not.", _trainer_refused),
    Metric("headrace_trainer_blocked_seconds_total", "counter", _TRAINER,
           "How long it has waited for batches, as it says itself.",
           _trainers(lambda t: t["blocked_s"])),
    Metric("headrace_trainer_busy_seconds_total", "counter", _TRAINER,
           "How long it was busy with batches.", _trainers(lambda t: t["busy_s"])),
    Metric("headrace_trainer_leases", "gauge", _TRAINER, "Batches in its hands.",
           _trainers(lambda t: t.get("leases", 0))),
    Metric("headrace_trainer_window", "gauge", _TRAINER, "Batches that it would take now.",
           _trainers(lambda t: t.get("window", 0))),
    Metric("headrace_trainer_silent_seconds", "gauge", _TRAINER,
           "How long nothing was heard of it.", _trainers(lambda t: t["silent_s"])),
    Metric("headrace_worker_seconds_total", "counter", ("worker", "doing"),
           "How long a worker worked, and how long it waited: for trainers to take batches, for "
           "states that they hold, for room in its slab.", _worker_seconds),
    Metric("headrace_worker_slab_bytes", "gauge", _WORKER, "Shared memory in use by batches.",
           _workers(lambda w: w["slab_bytes"])),
    Metric("headrace_worker_slab_limit_bytes", "gauge", _WORKER, "What it may use at most.",
           _workers(lambda w: w["slab_limit_bytes"])),
    Metric("headrace_worker_restarts_total", "counter", _WORKER,
           "How often a worker died and was started again.", _workers(lambda w: w["restarts"])),
)  # fmt: skip
