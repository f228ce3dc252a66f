"""Joining a feed as a trainer: ``connect``, which sends nothing where an argument can not be."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from headrace_proto.address import check_address
from headrace_proto.keys import ENVIRONMENT
from headrace_proto.token import Token

from .feed import Feed
from .link import Link, opened
from .session import Session
from .values import load

__all__ = ["connect"]

_FRAMEWORKS = ("numpy", "tf", "torch", "jax")
_MAX_PREFETCH = 63
_PROCESS = secrets.token_bytes(12)


def connect(
    address: str,
    *,
    feed: str | None = None,
    framework: str = "numpy",
    prefetch: int = 2,
    rank: int | None = None,
    world_size: int | None = None,
    timeout: float = 120.0,
    resume: Any = None,
    keys: str | os.PathLike[str] | None = None,
) -> Feed:
    """Join a feed as a trainer.

    ``feed`` may be left out where the server serves one.  ``framework`` is ``"numpy"``, ``"tf"``,
    ``"torch"`` or ``"jax"``.  ``prefetch`` batches are held beyond the one in hand; with 0 a batch
    is asked for only when the trainer waits for it.  ``rank`` and ``world_size`` make the feed
    coordinated: every round gives each rank one batch.  ``timeout`` is the deadline in seconds of
    every wait.

    ``resume`` is what ``feed.snapshot()`` gave: the feed is taken back to what it was then, for all
    trainers, and this one is the first of those who go on from there.  Others that bring the same
    token join it, whether they come at once or later while one of them is at work.

    ``keys`` is the directory with this trainer's secret key and ``server.public``, or the file of
    the secret; the environment's ``HEADRACE_KEYS`` where it is not given.
    """
    check_address("address", address)
    if framework not in _FRAMEWORKS:
        raise ValueError(f"framework={framework!r} is not one of {', '.join(_FRAMEWORKS)}")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int):
        raise TypeError(f"prefetch={prefetch!r} is not an integer")
    if not 0 <= prefetch <= _MAX_PREFETCH:
        raise ValueError(f"prefetch={prefetch} does not lie in 0 … {_MAX_PREFETCH}")
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not lie in 0 … world_size-1 = {world_size - 1}")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r} is not a positive number of seconds")
    token = None if resume is None else Token.from_plain("resume", resume)
    if token is not None and feed not in (None, token.feed):
        raise ValueError(f"resume: a token of feed {token.feed!r}, and feed={feed!r}")
    locked = None
    if keys is not None or os.environ.get(ENVIRONMENT):
        from .keys import load_keys

        locked = load_keys(keys)
    loaded = load(framework)
    session = Session(
        feed or ("" if token is None else token.feed),
        secrets.token_bytes(16),
        prefetch,
        -1 if rank is None else rank,
        world_size or 0,
        _PROCESS + os.getpid().to_bytes(4, "little"),
        "" if token is None else token.snapshot,
        f"{socket.gethostname()}:{os.getpid()}",
    )
    return Feed(opened(Link(address, session, float(timeout), locked)), loaded)
