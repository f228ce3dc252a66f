"""A server in threads of the test, and a trainer of it.

A test whose subject is a process (its death, its memory, its signals, several workers) calls
``hs.run`` itself.
"""

from __future__ import annotations

from typing import Any

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

__all__ = ["connect", "drained", "serving", "worker_pid"]


def serving(pipelines: Any, **options: Any) -> hs.Server:
    """Start a server in threads: ready in ten milliseconds, behind the doors of processes."""
    return hs.run(pipelines, workers=0, **options)


def connect(server: hs.Server, **options: Any) -> headrace.Feed:
    """Connect to a server, with a timeout that a busy machine keeps."""
    return headrace.connect(server.address, **{"timeout": PATIENCE_S, **options})


def drained(server: hs.Server, feed: str = "default") -> list[headrace.Batch]:
    """All batches, for those who wait for an error."""
    with connect(server, feed=feed) as batches:
        return list(batches)


def worker_pid(server: hs.Server) -> int:
    """The process of its only worker."""
    return next(pid for name, pid in server.pids.items() if name.startswith("worker"))
