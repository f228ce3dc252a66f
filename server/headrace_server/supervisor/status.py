"""The status of a whole server at one moment, joined from what each of its processes knows.

    the front: its keys, its refusals  ────┐
    owner 0: its partitions, its sessions ─┤
    owner 1: …                            ─┼─► overview(): Server.stats, watch
    its posts, its quarantine, its events ─┘

Each owner counts its own partitions, so counts are added.  A trainer has a session with each owner
and appears once.  ``process/statuses.py`` says how each field is joined.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace_proto import __version__

from ..process.config import FeedConfig, RunConfig
from ..process.statuses import EventStatus, PipelineStatus, SeenServer, joined
from .liveness import Post


def overview(
    config: RunConfig,
    answers: Sequence[Mapping[str, Any]],
    posts: Sequence[Post],
    quarantined: Mapping[str, int],
    draining: bool = False,
    events: Iterable[EventStatus] = (),
) -> SeenServer:
    """Return the status, as far as a supervisor knows it.

    ``answers`` are those of the front and of all owners.
    """
    known = {
        "version": __version__,
        "at": time.time(),
        "feeds": {
            feed.name: {
                "pipeline": _pipeline(feed),
                "quarantined": quarantined.get(feed.name, 0),
            }
            for feed in config.feeds
        },
        "workers": [
            {
                "worker": post.number,
                "pid": None if post.child is None else post.child.pid,
                "restarts": post.life,
                "doing": post.doing,
                "slab_limit_bytes": config.slab_bytes,
                "shares": {},
            }
            for post in posts
        ],
        "share": list(config.share),
        "draining": draining,
        "events": list(events),
    }
    return joined(SeenServer, [*answers, known])


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
