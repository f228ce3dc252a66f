"""A whole server at one moment, as plain data: what ``Server.stats`` and all that watches is told.

    owners: feeds, trainers ─┐
    sheets of the workers ───┼─► overview()
    chronicle, quarantine ───┘

What workers tell is at most about a second older than what owners tell.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_proto import __version__

from ..process.config import FeedConfig, RunConfig
from .posts import Post

__all__ = ["overview"]


def overview(
    config: RunConfig,
    answer: Mapping[str, Any],
    posts: Sequence[Post],
    quarantined: Mapping[str, int],
) -> dict[str, Any]:
    """All of it.  ``answer`` is that of all owners together."""
    now = time.monotonic()
    feeds = {name: dict(told) for name, told in answer["feeds"].items()}
    workers = [_worker(post, config) for post in posts]
    for feed in config.feeds:
        _add_reading(feeds[feed.name], feed, posts, now)
        feeds[feed.name]["quarantined"] = quarantined.get(feed.name, 0)
    return {
        "version": __version__,
        "at": time.time(),
        "access": answer["access"],
        "feeds": feeds,
        "workers": workers,
    }


def _worker(post: Post, config: RunConfig) -> dict[str, Any]:
    told, rests = post.notebook.report(), post.notebook.totals().get("rests", {})
    life_s = rests.pop("life", 0.0)
    child = post.child
    return {
        "worker": post.number,
        "pid": None if child is None else child.pid,
        "restarts": post.life,
        "doing": post.doing,
        "slab_bytes": told.get("slab", 0),
        "slab_limit_bytes": config.slab_bytes,
        "work_s": max(0.0, life_s - sum(rests.values())),
        "rests_s": rests,
    }


def _add_reading(told: dict[str, Any], feed: FeedConfig, posts: Sequence[Post], now: float) -> None:
    """What workers know of a feed: how far partitions are, what their stores do."""
    entries = {
        entry["partition"]: entry
        for post in posts
        for entry in post.notebook.report().get("partitions", ())
        if entry["feed"] == feed.name
    }
    totals = [post.notebook.totals().get(f"feed:{feed.name}", {}) for post in posts]
    told["read"] = int(sum(total.get("read", 0) for total in totals))
    told["pipeline"] = _pipeline(feed)
    for partition in told["partitions"]:
        entry = entries.get(partition["partition"])
        if entry is not None:
            names = ("number", "epoch", "position", "share")
            partition |= {name: entry[name] for name in names}
    standing = [entry["segments"] for entry in entries.values() if "segments" in entry]
    if standing:
        sums = {what: sum(of[what] for of in standing) for what in standing[0]}
        told["segment_standing"] = sums
    stores = [entry for entry in entries.values() if "fault" in entry]
    if stores:
        last = max(entry["committed_at"] for entry in stores)
        told["store"] = {
            "commits": int(sum(total.get("commits", 0) for total in totals)),
            "since_commit_s": round(max(0.0, now - last), 3) if last else None,
            "faults": sorted({entry["fault"] for entry in stores if entry["fault"]}),
        }


def _pipeline(feed: FeedConfig) -> dict[str, Any]:
    """What the feed was declared as, in words."""
    declaration = feed.declaration
    order = [] if declaration.order.seed is None else ["shuffle"]
    return {
        "source": declaration.source.kind,
        "stages": [*order, *(stage.kind for stage in declaration.stages)],
        "shape": declaration.shape.kind,
        "partitions": feed.partitions,
    }
