"""The status of a whole server at one moment, joined from what each of its processes knows.

    the front: its keys, its refusals  ────┐
    owner 0: its partitions, its sessions ─┤
    owner 1: …                            ─┼─► overview(): Server.stats, watch
    reports of the workers, the quarantine ┘

Each owner counts its own partitions, so counts are added.  A trainer has a session with each owner
and appears once.  ``process/statuses.py`` says how each field is joined.  Reports of workers are up
to about a second older.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace_proto import __version__

from ..process.config import FeedConfig, RunConfig
from ..process.counts import added
from ..process.statuses import EventStatus, PipelineStatus, SeenServer, WorkerStatus, joined
from .liveness import Post

_Status = Mapping[str, Any]
_PROGRESS = ("partition", "number", "epoch", "position", "share")


def overview(
    config: RunConfig,
    answers: Sequence[_Status],
    posts: Sequence[Post],
    quarantined: Mapping[str, int],
    draining: bool = False,
    events: Iterable[EventStatus] = (),
) -> SeenServer:
    """Return the status, as far as a supervisor knows it.

    ``answers`` are those of the front and of all owners.
    """
    reports = [(post.notebook.report(), post.notebook.totals()) for post in posts]
    known = {
        "version": __version__,
        "at": time.time(),
        "feeds": {
            feed.name: {
                **_reported(feed.name, reports),
                "pipeline": _pipeline(feed),
                "quarantined": quarantined.get(feed.name, 0),
            }
            for feed in config.feeds
        },
        "workers": [_worker(post, *of, config) for post, of in zip(posts, reports, strict=True)],
        "share": list(config.share),
        "draining": draining,
        "events": list(events),
    }
    return joined(SeenServer, [*answers, known])


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


def _reported(feed: str, reports: Sequence[tuple[_Status, _Status]]) -> dict[str, Any]:
    """Return workers' reports on a feed: the progress of partitions and of their stores."""
    entries = [
        entry
        for report, _ in reports
        for entry in report.get("partitions", ())
        if entry["feed"] == feed
    ]
    totals = added(total.get(f"feed:{feed}", {}) for _, total in reports)
    known: dict[str, Any] = {
        "read": int(totals.get("read", 0)),
        "partitions": [{name: entry[name] for name in _PROGRESS} for entry in entries],
    }
    if standing := [entry["segments"] for entry in entries if "segments" in entry]:
        known["segment_standing"] = added(standing)
    if stores := [entry for entry in entries if "fault" in entry]:
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
