"""A process that can open nothing more, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_descriptors(free: int = 0) -> Iterator[None]:
    """Let every open, accept and socket fail with EMFILE after ``free`` successes."""
    gc.collect()  # what goes within the block would make room
    gc.disable()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(free + 1)]
    for number in opened:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        gc.enable()
