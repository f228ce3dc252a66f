"""The status of a whole server at one moment, joined from what its processes answer and report.

    owner 0: its partitions, its sessions ─┐
    owner 1: …                            ─┼─► gathered() ─┐
                                           ┘               ├─► overview(): Server.stats, watch
    reports of the workers, the quarantine ────────────────┘

Each owner counts its own partitions, so counts are added.  A trainer has a session with each owner
and appears once, by its nonce.  Reports of workers are up to about a second older.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from headrace_proto import __version__

from ..process.config import MOST_FOUND, MOST_TRAINERS, FeedConfig, RunConfig
from ..process.counts import added
from .posts import Post

__all__ = ["gathered", "overview"]

_Status = Mapping[str, Any]

#: Length of the text on what a feed waits for.
_LONGEST_WAITING = 1000
#: States of a feed: the first that an owner is in is that of the whole feed.
_STATES = ("failed", "opening", "closing", "open", "ended")


# Answers of owners


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _classes(values: Sequence[_Status]) -> dict[str, Any]:
    """Add counters by class; where targets changed, list the changes of each partition."""
    counts = added({k: v for k, v in some.items() if k != "changes"} for some in values)
    changes = [one for some in values for one in some.get("changes", ())]
    return {**counts, "changes": changes} if changes else counts


def _waiting(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(values))[:_LONGEST_WAITING]


def _partitions(values: Sequence[Any]) -> list[Any]:
    return sorted(chain.from_iterable(values), key=lambda one: int(one["partition"]))


def _trainers(values: Sequence[Sequence[_Status]]) -> list[dict[str, Any]]:
    """List each trainer once, with the sums of its sessions."""
    sessions: dict[str, list[_Status]] = {}
    for one in sorted(chain.from_iterable(values), key=lambda one: int(one["trainer"])):
        sessions.setdefault(one["nonce"], []).append(one)
    joined = [_joined(_OF_TRAINER, its) for its in sessions.values()]
    return [{name: one[name] for name in one if name != "nonce"} for one in joined]


_Join = Callable[[Sequence[Any]], Any]

#: How the values of all owners become that of a feed …
_OF_FEED: dict[str, _Join] = {
    **dict.fromkeys(("batches", "rows", "redelivered", "stale", "expired"), sum),
    **dict.fromkeys(
        ("made", "refused", "dropped", "standing", "segments", "padding", "sent"), added
    ),
    "classes": _classes,
    "state": lambda values: min(values, key=_STATES.index),
    "failure": _first,
    "waiting": _waiting,
    "partitions": _partitions,
    "trainers": _trainers,
    "trainers_more": max,
}
#: … and those of all its sessions that of a trainer.  The first stands for all where none is named.
_OF_TRAINER: dict[str, _Join] = {
    **dict.fromkeys(("window", "leases", "batches", "rows", "bytes", "committed", "stale"), sum),
    **dict.fromkeys(("wire_batches", "wire_bytes"), sum),
    **dict.fromkeys(("blocked_s", "busy_s"), max),  # the trainer reports the same to all
    "refused": added,
    "local": all,
    "silent_s": min,
}


def _joined(joins: Mapping[str, _Join], parts: Sequence[_Status]) -> dict[str, Any]:
    names = dict.fromkeys(chain.from_iterable(parts))
    return {
        name: joins.get(name, _first)([part[name] for part in parts if name in part])
        for name in names
    }


def _feed(parts: Sequence[_Status]) -> dict[str, Any]:
    whole = _joined(_OF_FEED, parts)
    trainers = whole["trainers"]
    whole["trainers"] = trainers[:MOST_TRAINERS]
    whole["trainers_more"] += len(trainers[MOST_TRAINERS:])
    return whole


def _access(answers: Sequence[_Status]) -> dict[str, Any]:
    """Join who is let in, which all owners know of the front, and who was refused by any of them.

    An owner's counts are those of the front with its own (``refused_here``) in them.
    """
    by_front: dict[str, int] = {}
    present: dict[str, int] = {}
    here = [answer.get("refused_here", {}) for answer in answers]
    for answer, own in zip(answers, here, strict=True):
        for reason, n in answer["access"]["refused"].items():
            by_front[reason] = max(by_front.get(reason, 0), n - own.get(reason, 0))
        for name, n in answer["access"]["present"].items():
            present[name] = max(present.get(name, 0), n)
    refused = {reason: n for reason, n in added([by_front, *here]).items() if n}
    return {**answers[0]["access"], "refused": refused, "present": present}


def gathered(order: str, answers: Sequence[_Status]) -> dict[str, Any]:
    """Return the answer of the server to an order, from those of all its owners."""
    if order == "stats":
        names = answers[0]["feeds"]
        feeds = {name: _feed([answer["feeds"][name] for answer in answers]) for name in names}
        return {"feeds": feeds, "access": _access(answers)}
    if order == "users":
        return {"users": sorted({user for answer in answers for user in answer["users"]})}
    if order == "inspect":
        found = [one for answer in answers for one in answer["found"]]
        unheard = [partition for answer in answers for partition in answer["unheard"]]
        return {"found": found[:MOST_FOUND], "unheard": sorted(unheard)}
    return dict(answers[0])


# With the reports of workers


def overview(
    config: RunConfig, answer: _Status, posts: Sequence[Post], quarantined: Mapping[str, int]
) -> dict[str, Any]:
    """Return the whole status; ``answer`` is that of all owners together."""
    reports = [(post.notebook.report(), post.notebook.totals()) for post in posts]
    feeds = {}
    for feed in config.feeds:
        known = {**answer["feeds"][feed.name], "quarantined": quarantined.get(feed.name, 0)}
        entries = [one for report, _ in reports for one in report.get("partitions", ())]
        mine = {one["partition"]: one for one in entries if one["feed"] == feed.name}
        totals = added(total.get(f"feed:{feed.name}", {}) for _, total in reports)
        feeds[feed.name] = _with_reading(known, feed, mine, totals)
    workers = [_worker(post, *of, config) for post, of in zip(posts, reports, strict=True)]
    return {
        "version": __version__,
        "at": time.time(),
        "access": answer["access"],
        "feeds": feeds,
        "workers": workers,
    }


def _worker(post: Post, report: _Status, totals: _Status, config: RunConfig) -> dict[str, Any]:
    rests = dict(totals.get("rests", {}))
    life_s = rests.pop("life", 0.0)
    return {
        "worker": post.number,
        "pid": None if post.child is None else post.child.pid,
        "restarts": post.life,
        "doing": post.doing,
        "slab_bytes": report.get("slab", 0),
        "slab_limit_bytes": config.slab_bytes,
        "work_s": max(0.0, life_s - sum(rests.values())),
        "rests_s": rests,
    }


def _with_reading(
    known: dict[str, Any], feed: FeedConfig, entries: Mapping[int, _Status], totals: _Status
) -> dict[str, Any]:
    """Add what workers report of a feed: how far partitions are, what their stores do."""
    known["read"] = int(totals.get("read", 0))
    known["pipeline"] = _pipeline(feed)
    for partition in known["partitions"]:
        entry = entries.get(partition["partition"])
        if entry is not None:
            partition |= {name: entry[name] for name in ("number", "epoch", "position", "share")}
    standing = [entry["segments"] for entry in entries.values() if "segments" in entry]
    if standing:
        known["segment_standing"] = added(standing)
    stores = [entry for entry in entries.values() if "fault" in entry]
    if stores:
        last = max(entry["committed_at"] for entry in stores)
        known["store"] = {
            "commits": int(totals.get("commits", 0)),
            "since_commit_s": round(max(0.0, time.monotonic() - last), 3) if last else None,
            "faults": sorted({entry["fault"] for entry in stores if entry["fault"]}),
        }
    return known


def _pipeline(feed: FeedConfig) -> dict[str, Any]:
    """Describe what the feed was declared as, in words."""
    declaration = feed.declaration
    order = [] if declaration.order.seed is None else ["shuffle"]
    return {
        "source": declaration.source.kinds,
        "stages": [*order, *(stage.kind for stage in declaration.stages)],
        "shape": declaration.shape.kind,
        "partitions": feed.partitions,
    }
