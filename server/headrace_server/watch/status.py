"""The status of a whole server at one moment, joined from what each of its processes knows.

    the locator: its keys, its refusals ───┐
    owner 0: its partitions, its sessions ─┤
    owner 1: …                            ─┼─► overview(): Server.stats, watch
    its posts, its events ─────────────────┘

Each owner counts its own partitions, so counts are added.  A trainer has a session with each owner
and appears once.  ``watch/statuses.py`` says how each field is joined.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from headrace_proto import __version__

from ..process.config import FeedConfig, RunConfig
from .statuses import DiskStatus, PipelineStatus, SeenServer, StatusPart, joined

#: A start writes some small files, and the snapshot of a feed; with less room than this it fails.
_LEAST_BYTES = 1024**2


def overview(config: RunConfig, answers: Sequence[StatusPart], **more: object) -> SeenServer:
    """Return the status, as far as a supervisor knows it.

    ``answers`` are those of the locator and of all owners; ``more`` are further fields.
    """
    known = {
        "version": __version__,
        "at": time.time(),
        "feeds": {feed.name: {"pipeline": _pipeline(feed)} for feed in config.feeds},
        "share": list(config.share),
        **more,
    }
    return joined(SeenServer, [*answers, known])


def disk_of(directory: str | None) -> DiskStatus | None:
    """Return the room for the files of a state directory, and why none can be written there."""
    if directory is None:
        return None
    fault, free = "", 0
    try:
        found = os.statvfs(directory)
        free = found.f_frsize * (found.f_bavail if os.geteuid() else found.f_bfree)
        if found.f_flag & os.ST_RDONLY:
            fault = f"the disk of state_dir={directory!r} is read-only: mount it for writing"
        elif free < _LEAST_BYTES:
            fault = (
                f"the disk of state_dir={directory!r} is full ({free} bytes are free, and a start "
                f"needs {_LEAST_BYTES}): make room there"
            )
    except OSError as error:
        fault = f"state_dir={directory!r} can not be used: {error.strerror}"
    return {"path": directory, "free_bytes": free, "fault": fault}


def _pipeline(feed: FeedConfig) -> PipelineStatus:
    """Describe the feed's declaration in words."""
    declaration = feed.declaration
    order = [] if declaration.order.seed is None else ["shuffle"]
    return {
        "source": declaration.source.kinds,
        "stages": [*order, *(str(stage.kind) for stage in declaration.stages)],
        "shape": str(declaration.shape.kind),
        "partitions": feed.partitions,
    }
