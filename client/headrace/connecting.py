"""Joining a feed as a trainer: ``connect``, which checks all arguments before it sends anything."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace_proto import limits
from headrace_proto.address import check_addresses, feed_on_ray
from headrace_proto.credentials import load_keys
from headrace_proto.errors import one_line
from headrace_proto.process import process_name
from headrace_proto.token import Token

from .connection.link import Link, opened
from .connection.session import NEWCOMER, Member
from .feed import Feed
from .framework import NUMPY, Framework
from .launcher import began, launched_run
from .machine.prefetch import AUTO, Prefetch

if TYPE_CHECKING:
    from .ray import RayDirectory

logger = logging.getLogger("headrace")

_CLASSES = {"tf": "TensorFlow", "torch": "Torch", "jax": "Jax"}
_CHOICES = {
    "framework": ("numpy", *_CLASSES),
    "commit": ("on_next", "explicit"),
    "order": ("feed", "any"),
}
#: Maximum length of a feed's name.
_LONGEST_NAME = 100


def connect(
    address: str | Sequence[str],
    *,
    feed: str | None = None,
    framework: str = "numpy",
    prefetch: int | str = AUTO,
    commit: str = "on_next",
    rank: int | None = None,
    world_size: int | None = None,
    run: int | None = None,
    timeout: float = 120.0,
    resume: Any = None,
    restart: bool = False,
    order: str = "feed",
    keys: str | os.PathLike[str] | None = None,
) -> Feed:
    """Join a feed as a trainer.

    ``address`` is that of a server, ``tcp://host:port``; every address for which the host's name
    stands is tried in turn.  For several servers that share a feed give all addresses: a list, with
    commas between them, as a range (``tcp://feeder-{0..3}:5557``), or one DNS name for all.
    Together they must have the whole feed: a ValueError names the difference or the missing share.
    ``ray://FEED`` finds the servers that ``hs.on_ray`` has started.

    ``feed`` may be left out where the server serves one.  ``framework`` is ``"numpy"``, ``"tf"``,
    ``"torch"`` or ``"jax"``.  The client holds ``prefetch`` batches beyond the one in hand, at most
    the server's ``max_credits``; with 0 it asks for a batch only when the trainer waits for it.
    ``"auto"`` begins with 2, and doubles while the trainer has to wait: up to 16 batches, or 16 MB
    of them.  It stays at 2 where states are at the server, since there the order depends on it.
    ``rank`` and ``world_size`` make the feed coordinated: every round gives each rank one batch.
    ``run`` is the number of the ranks' run: the same in all of them, and another one each time they
    start.  It is taken from torchrun, Slurm, MPI or Ray Train; without them the server begins a new
    run once the processes of the last one are gone.  While a rank of another run is at work, this
    raises ``FeedInUse``; so does the number of a run that is over.  A rank that comes back in its
    run replaces its older process.
    ``timeout`` is the deadline in seconds of every wait; only time in which this process ran
    counts.

    ``commit`` is ``"on_next"``: asking for the next batch commits the one before; or
    ``"explicit"``: only ``feed.commit(batch)`` and ``batch.commit()`` commit, for loops that fetch
    ahead of training and need exact checkpoints.  Batches of segments are committed by the save of
    their last state in both.

    ``resume`` is the token of a ``feed.snapshot()``: the server takes the feed back to it, for all
    trainers.  Trainers that bring the same token while another of them is at work join it: the feed
    is not taken back again.

    ``restart=True`` starts the feed from its beginning.  Trainers that ask for the same while
    another of them is at work join it; while trainers of other processes use the feed it raises
    ``FeedInUse``; those of this process get ``FeedRewound``.  Without it, the log of a trainer
    that joins a used feed has its position.

    ``order`` is ``"feed"``: batches come in the feed's order, which does not depend on the numbers
    of servers and workers; or ``"any"``: each batch comes as soon as it is ready, so an unreachable
    server or worker delays only its own partitions.  Ranks and lanes refuse ``"any"``.

    ``keys`` is the directory with this trainer's secret key and ``server.public``, or the file of
    the secret; the environment's ``HEADRACE_KEYS`` where it is not given.  Servers of ``ray://FEED``
    give trainers their keys.
    """
    on_ray = feed_on_ray(address)
    if on_ray is not None and keys is not None:
        raise ValueError(f"keys= and address={address!r:.80}: servers on Ray give trainers theirs")
    addresses = ",".join(check_addresses("address", address)) if on_ray is None else ""
    for name, value in (("framework", framework), ("commit", commit), ("order", order)):
        if value not in _CHOICES[name]:
            known = ", ".join(map(repr, _CHOICES[name]))
            raise ValueError(f"{name}={value!r:.80} is not one of {known}")
    if order != "feed" and rank is not None:
        raise ValueError(
            f"order={order!r} and rank={rank}: ranks take the same rounds, in the feed's order"
        )
    _check_prefetch(prefetch)
    if feed is not None and not isinstance(feed, str):
        raise TypeError(f"feed={feed!r:.80} is not the name of a feed")
    if feed is not None and len(feed) > _LONGEST_NAME:
        raise ValueError(
            f"feed={feed!r:.80} has {len(feed)} characters; the most is {_LONGEST_NAME}"
        )
    _check_rank(rank, world_size)
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r:.80} is not a positive number of seconds")
    token = _token_of(resume, feed, restart)
    loaded = load(framework)
    directory: RayDirectory | None = None
    if on_ray is not None:
        from .ray import RayDirectory

        directory = RayDirectory(on_ray)
        addresses = directory.find(float(timeout))
        feed = feed or on_ray
    locked = load_keys(keys) if directory is None else directory.keys()
    prefetched = Prefetch(prefetch)
    hello = replace(
        NEWCOMER,
        feed=feed or ("" if token is None else token.feed),
        rank=-1 if rank is None else rank,
        world_size=world_size or 0,
        run=_run_of(run, rank),
        birth=began(),
        process=process_name(),
        host=f"{socket.gethostname()}:{os.getpid()}",
        resume="" if token is None else token.snapshot,
        restart=restart,
    )
    member = Member(hello=hello, explicit=commit == "explicit", order=order)
    link = opened(Link(addresses, member, float(timeout), prefetched, locked, directory))
    _log_use(link)
    return Feed(link, loaded)


def load(name: str) -> Framework:
    """Return a framework; modules of others are not loaded."""
    if name == "numpy":
        return NUMPY
    made: Framework = getattr(import_module(f".{name}", __package__), _CLASSES[name])()
    return made


def _check_prefetch(prefetch: object) -> None:
    if prefetch != AUTO and (isinstance(prefetch, bool) or not isinstance(prefetch, int)):
        raise TypeError(f"prefetch={prefetch!r:.80} is neither an integer nor {AUTO!r}")
    if isinstance(prefetch, int) and not 0 <= prefetch <= limits.MAX_PREFETCH:
        raise ValueError(f"prefetch must be between 0 and {limits.MAX_PREFETCH}, not {prefetch}")


def _check_rank(rank: int | None, world_size: int | None) -> None:
    for name, number in (("rank", rank), ("world_size", world_size)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise TypeError(f"{name}={number!r:.80} is not an integer")
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank} and world_size={world_size}: give both or neither")
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise ValueError(f"rank must be between 0 and world_size-1 = {world_size - 1}, not {rank}")


def _run_of(run: object, rank: int | None) -> int:
    """Return the number of the ranks' run: as given, or as the launcher names it."""
    if run is None:
        return 0 if rank is None else launched_run()
    if isinstance(run, bool) or not isinstance(run, int):
        raise TypeError(f"run={run!r:.80} is not an integer")
    if rank is None:
        raise ValueError(f"run={run}: only ranks have runs; give rank= and world_size= too")
    if not 0 <= run <= limits.MAX_COUNT:
        raise ValueError(f"run must be between 0 and {limits.MAX_COUNT}, not {run}")
    return run


def _token_of(resume: Any, feed: str | None, restart: object) -> Token | None:
    """Return the snapshot from which a trainer goes on, if it does."""
    token = None if resume is None else Token.from_plain("resume", resume)
    if token is not None and feed not in (None, token.feed):
        raise ValueError(f"resume: a token of feed {token.feed!r}, and feed={feed!r}")
    if not isinstance(restart, bool):
        raise TypeError(f"restart={restart!r:.80} is not True or False")
    if restart and token is not None:
        raise ValueError("resume= and restart=True: give one of them, they begin at other places")
    return token


def _log_use(link: Link) -> None:
    """Log that this trainer does not begin at the feed's beginning, but not beside others at work.

    An owner that has finished says how many batches it made in any case; one at which others train
    says 0.
    """
    welcomes = [session.welcome for session in link.sessions if session.welcome is not None]
    finished = all(welcome.finished for welcome in welcomes)
    batches = sum(welcome.done for welcome in welcomes)
    shared = any(one.others and not (one.finished or one.done) for one in welcomes)
    if not finished and (shared or not batches):
        return
    begins = "has no more batches" if finished else "goes on where others left it"
    logger.warning(
        "feed %r at %s %s (committed batches: %d); to start it from its beginning: "
        "connect(restart=True) or headrace restart %s --address %s",
        welcomes[0].feed,
        link.address,
        begins,
        batches,
        one_line(welcomes[0].feed),
        link.address,
    )
