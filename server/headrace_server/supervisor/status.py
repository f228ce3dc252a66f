"""The status of a whole server at one moment, joined from answers and reports of its processes.

    owner 0: its partitions, its sessions ─┐
    owner 1: …                            ─┼─► gathered() ─┐
                                           ┘               ├─► overview(): Server.stats, watch
    reports of the workers, the quarantine ────────────────┘

Each owner counts its own partitions, so counts are added.  A trainer has a session with each owner
and appears once.  ``process/statuses.py`` says how each field is joined.  Reports of workers are up
to about a second older.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace_proto import __version__

from ..process.config import MOST_FOUND, FeedConfig, RunConfig
from ..process.counts import added
from ..process.statuses import (
    AccessStatus,
    FeedStatus,
    PipelineStatus,
    SeenServer,
    WorkerStatus,
    joined,
    joined_feed,
    most_of_each,
)
from .liveness import Post

_Status = Mapping[str, Any]


def _access(answers: Sequence[_Status]) -> AccessStatus:
    """Join the trainers that are let in, and the refusals of the front and of each owner."""
    known = [answer["access"] for answer in answers]
    by_front = most_of_each([one["refused"] for one in known])
    refused = added([by_front, *(answer["refused_here"] for answer in answers)])
    whole: AccessStatus = joined(AccessStatus, known)
    whole["refused"] = {reason: n for reason, n in refused.items() if n}
    return whole


def gathered(order: str, answers: Sequence[_Status]) -> dict[str, Any]:
    """Return the answer of the server to an order, from those of all its owners."""
    if order == "stats":
        names = answers[0]["feeds"]
        feeds = {name: joined_feed([answer["feeds"][name] for answer in answers]) for name in names}
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
) -> SeenServer:
    """Return the status, as far as a supervisor knows it; ``answer`` is that of all owners."""
    reports = [(post.notebook.report(), post.notebook.totals()) for post in posts]
    feeds = {}
    for feed in config.feeds:
        known = {**answer["feeds"][feed.name], "quarantined": quarantined.get(feed.name, 0)}
        entries = [one for report, _ in reports for one in report.get("partitions", ())]
        mine = {one["partition"]: one for one in entries if one["feed"] == feed.name}
        totals = added(total.get(f"feed:{feed.name}", {}) for _, total in reports)
        feeds[feed.name] = _with_reading(cast(FeedStatus, known), feed, mine, totals)
    workers = [_worker(post, *of, config) for post, of in zip(posts, reports, strict=True)]
    return {
        "version": __version__,
        "at": time.time(),
        "access": answer["access"],
        "feeds": feeds,
        "workers": workers,
        "share": list(config.share),
        "draining": False,
        "events": [],
    }


def _worker(post: Post, report: _Status, totals: _Status, config: RunConfig) -> WorkerStatus:
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
        "shares": {},
    }


def _with_reading(
    known: FeedStatus, feed: FeedConfig, entries: Mapping[int, _Status], totals: _Status
) -> FeedStatus:
    """Add workers' reports on a feed: the progress of partitions and of their stores."""
    known["read"] = int(totals.get("read", 0))
    known["pipeline"] = _pipeline(feed)
    for partition in known["partitions"]:
        entry = entries.get(partition["partition"])
        if entry is not None:
            partition["number"], partition["epoch"] = entry["number"], entry["epoch"]
            partition["position"], partition["share"] = entry["position"], entry["share"]
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


def _pipeline(feed: FeedConfig) -> PipelineStatus:
    """Describe the feed's declaration in words."""
    declaration = feed.declaration
    order = [] if declaration.order.seed is None else ["shuffle"]
    return {
        "source": declaration.source.kinds,
        "stages": [*order, *(stage.kind for stage in declaration.stages)],
        "shape": declaration.shape.kind,
        "partitions": feed.partitions,
    }
