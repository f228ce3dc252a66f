"""The table of all metrics: their names, where their values stand in a status, and their meanings.

    _metric("rows_dropped_total", "feed.dropped[reason]", …)
              counter              │    │       └ a label more, for each key of a dict
                                   │    └ a value of the subject, see ``_values_of_feed`` …
                                   └ the subject: server, feed, trainer or worker, and its labels

A metric that has a label for each trainer, bucket or class has at most ``MOST`` of them; the others
are added up under ``other``.  Trainers that have left are in no status, and so in no metric.

``exposition`` gives all of them in the text format of Prometheus, version 0.0.4:

    # HELP name text          in help: \\ and line feed are escaped
    # TYPE name counter
    name{label="value"} 1     in values of labels: \\, line feed and " are
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..process.statuses import FeedStatus, ServerStatus, TrainerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Label values of one kind in one feed.
MOST = 100

#: Values of the labels, and of the metric.
Sample = tuple[tuple[str, ...], float]

_LABELS = {"server": (), "feed": ("feed",), "trainer": ("feed", "trainer"), "worker": ("worker",)}


@dataclass(frozen=True)
class Metric:
    """One line of the table."""

    name: str
    place: str
    help: str

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        more = self.place.partition("[")[2].rstrip("]")
        return (*_LABELS[self._subject], *(more.split(",") if more else ()))

    @property
    def _subject(self) -> str:
        return self.place.partition(".")[0]

    def samples(self, status: ServerStatus) -> Iterator[Sample]:
        """Give the values of a status that has them."""
        _, *names = self.place.partition("[")[0].split(".")
        for labels, found in _SUBJECTS[self._subject](status):
            value: Any = found
            for name in names:
                value = None if value is None else value.get(name)
            if not isinstance(value, Mapping):
                yield from () if value is None else [(labels, float(value))]
                continue
            for key, n in value.items():
                yield (*labels, *((key,) if isinstance(key, str) else key)), float(n)


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
    stale = counts["stale"] + counts["refused"].get("stale", 0)
    return _bounded(
        {"stale": stale, **{c: n for c, n in counts["refused"].items() if c != "stale"}}
    )


def _server(status: ServerStatus) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield (
        (),
        {
            "info": {status["version"]: 1},
            "up": status["state"] not in ("starting", "failed"),
            "draining": status["draining"],
            "refused": _bounded(status["access"]["refused"]),
            "shares": {
                one["share"]: one["state"] != "away"
                for feed in status["feeds"].values()
                for one in feed["shares"]
            },
        },
    )


def _feeds(status: ServerStatus) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, feed in status["feeds"].items():
        yield (name,), {**feed, **_values_of_feed(feed)}


def _values_of_feed(feed: FeedStatus) -> dict[str, Any]:
    """Return the values that stand otherwise in a status, or are derived from several."""
    partitions, padding, classes = feed["partitions"], feed["padding"], feed["classes"]
    done = sum(one["done"] for one in partitions)
    opened = sum(one["open"] for one in partitions) - done
    states = ("opening", "open", "closing", "ended", "failed")
    values = {
        "state": {state: feed["state"] == state for state in states},
        "trainers": len(feed["trainers"]) + feed["trainers_more"],
        "dropped": _bounded(feed["dropped"]),
        "refused": _refused(feed),
        "partitions": {
            "opening": len(partitions) - opened - done,
            "open": opened,
            "done": done,
        },
        "padding": {
            (bucket, kind): n
            for kind, at in (("padded", 0), ("real", 1))
            for bucket, n in _bounded({b: counts[at] for b, counts in padding.items()}).items()
        },
        "padding_ratio": {
            bucket: 1 - real / padded
            for bucket, (padded, real) in list(padding.items())[:MOST]
            if padded
        },
        "classes": {
            (name, outcome): n
            for outcome in ("accepted", "rejected")
            for name, n in _numbered(classes.get(outcome)).items()
        },
        "waiting": _numbered(classes.get("waiting")),
        "share_made": {one["share"]: one["made"] for one in feed["shares"]},
        "share_rows": {one["share"]: one["rows"] for one in feed["shares"]},
    }
    if "store" in feed:
        values["store"] = {**feed["store"], "faults": len(feed["store"]["faults"])}
    return values


def _trainers(status: ServerStatus) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, feed in status["feeds"].items():
        for one in feed["trainers"][:MOST]:
            way = "shm" if one["local"] else "wire"
            info = {(one["host"], one["name"], way): 1}
            values = {"leases": 0, "window": 0, **one, "info": info, "refused": _refused(one)}
            yield (name, str(one["trainer"])), values


def _workers(status: ServerStatus) -> Iterator[tuple[tuple[str, ...], Any]]:
    for one in status["workers"]:
        seconds = {"work": one["work_s"], **one["rests_s"]}
        yield (str(one["worker"]),), {**one, "seconds": seconds}


_SUBJECTS = {"server": _server, "feed": _feeds, "trainer": _trainers, "worker": _workers}


def _metric(name: str, place: str, help: str) -> Metric:
    return Metric(f"headrace_{name}", place, help)


METRICS: tuple[Metric, ...] = (
    _metric("info", "server.info[version]", "1; the release that runs."),
    _metric("up", "server.up", "1 while front and workers answer, else 0."),
    _metric("share_up", "server.shares[share]",
            "1 for each server of a feed that answers, 0 for one that is away."),
    _metric("draining", "server.draining", "1 once nothing more is handed out."),
    _metric("refused_total", "server.refused[reason]",
            "Connections and messages that were refused: garbage, wrong keys, over a limit."),
    _metric("feed_state", "feed.state[state]",
            "1 for the state in which a feed is, 0 for the others."),
    _metric("trainers", "feed.trainers", "Trainers that are connected."),
    _metric("rows_read_total", "feed.read",
            "Examples that workers have read, those that were read again included."),
    _metric("rows_dropped_total", "feed.dropped[reason]",
            "Rows that are in no batch, by the reason."),
    _metric("rows_quarantined", "feed.quarantined",
            "Examples that are left out because they killed their workers."),
    _metric("batches_made_total", "feed.made.batches", "Batches that workers have made."),
    _metric("rows_made_total", "feed.made.rows", "Rows in them; of a feed of segments, segments."),
    _metric("bytes_made_total", "feed.made.bytes", "Bytes of them in shared memory."),
    _metric("share_rows_made_total", "feed.share_made[share]", "Rows made, by the server's share."),
    _metric("share_rows_committed_total", "feed.share_rows[share]", "Rows committed, likewise."),
    _metric("batches_committed_total", "feed.batches", "Batches that trainers are done with."),
    _metric("rows_committed_total", "feed.rows", "Rows in them."),
    _metric("batches_sent_total", "feed.sent.batches[way]",
            "Batches that were sent to trainers: through shared memory (shm) or by wire."),
    _metric("bytes_sent_total", "feed.sent.bytes[way]", "Bytes of them."),
    _metric("batches_redelivered_total", "feed.redelivered",
            "Batches that came back from a trainer and went out again."),
    _metric("leases_expired_total", "feed.expired",
            "Leases that ended because their trainer was silent."),
    _metric("saves_refused_total", "feed.refused[reason]",
            "Commits and saves that did not count: stale, or by the code of the error."),
    _metric("batches", "feed.standing[state]",
            "Batches that are made and not done: ready, returned (or dealt to a rank), leased to "
            "a trainer, saving."),
    _metric("segments", "feed.segment_standing[state]",
            "Segments by what they wait for: ready (nothing), leased (the states of a trainer), "
            "full (examples that were read and find no place in the capacity)."),
    _metric("sequences_in_flight", "feed.segments.in_flight", "Examples that hold a place of it."),
    _metric("segments_rewound_total", "feed.segments.rewound",
            "Segments that were done, and went out again because their states were lost."),
    _metric("padding_elements_total", "feed.padding[bucket,kind]",
            "Elements of batches with padding (padded) and without (real)."),
    _metric("padding_ratio", "feed.padding_ratio[bucket]",
            "The part of a bucket's elements that is padding."),
    _metric("rows_by_class_total", "feed.classes[class,outcome]",
            "Rows of a stratified feed, accepted and rejected."),
    _metric("rows_waiting", "feed.waiting[class]", "Rows that wait for those of other classes."),
    _metric("partitions", "feed.partitions[state]",
            "Partitions by what they are: opening, open, done."),
    _metric("store_commits_total", "feed.store.commits", "Transactions of the state store."),
    _metric("store_fault", "feed.store.faults",
            "Faults that keep the state store from committing, such as a full disk."),
    _metric("store_seconds_since_commit", "feed.store.since_commit_s",
            "How long ago the last transaction was."),
    _metric("trainer_info", "trainer.info[host,name,way]",
            "1; the host that the trainer reports, the name of its key, and the way of its bytes: "
            "shm or wire."),
    _metric("trainer_batches_sent_total", "trainer.batches",
            "Batches that were sent, with those that were sent again."),
    _metric("trainer_rows_sent_total", "trainer.rows", "Rows in them."),
    _metric("trainer_bytes_sent_total", "trainer.bytes", "Bytes of them."),
    _metric("trainer_batches_committed_total", "trainer.committed",
            "Commits and saves that counted."),
    _metric("trainer_saves_refused_total", "trainer.refused[reason]", "Those that did not."),
    _metric("trainer_blocked_seconds_total", "trainer.blocked_s",
            "How long it has waited for batches, by its own report."),
    _metric("trainer_awaited_seconds_total", "trainer.awaited_s[share]",
            "How long of that it has waited for the server of a share."),
    _metric("trainer_busy_seconds_total", "trainer.busy_s", "How long it was busy with batches."),
    _metric("trainer_leases", "trainer.leases", "Batches in its hands."),
    _metric("trainer_window", "trainer.window", "Batches that it would take now."),
    _metric("trainer_silent_seconds", "trainer.silent_s", "How long nothing was heard of it."),
    _metric("worker_seconds_total", "worker.seconds[doing]",
            "How long a worker worked, and how long it waited: for trainers to take batches, for "
            "states that they hold, for room in its slab."),
    _metric("worker_slab_bytes", "worker.slab_bytes", "Shared memory in use by batches."),
    _metric("worker_slab_limit_bytes", "worker.slab_limit_bytes", "What it may use at most."),
    _metric("worker_restarts_total", "worker.restarts",
            "How often a worker died and was started again."),
)  # fmt: skip


def exposition(status: ServerStatus) -> str:
    """Return all metrics of a status."""
    lines = []
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for values, number in metric.samples(status):
            pairs = zip(metric.labels, values, strict=True)
            labels = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in pairs)
            lines.append(f"{metric.name}{'{' + labels + '}' if labels else ''} {_number(number)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    text = text.encode(errors="replace").decode()  # half a character would break the whole answer
    return text.replace('"', '\\"') if quoted else text
