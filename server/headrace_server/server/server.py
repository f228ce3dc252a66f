"""``hs.run``: a whole server for as long as a ``with`` block lasts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from headrace_proto.clock import Deadline
from headrace_proto.interrupts import interrupts_held

from ..files.extras import require
from ..journal.state_directory import StateDirectory
from ..process.config import RunConfig
from ..process.option import Option
from ..process.rundir import RunDirectory
from ..process.settings import KEEP_SNAPSHOTS, RunSettings, taking
from ..watch.http import HttpService, http_place
from ..watch.watch import Watch
from .arguments import as_tokens, index_directory, refuse_in_worker, start_config
from .supervisor import Supervisor

logger = logging.getLogger("headrace.server")

#: Part of the free shared memory that all slabs together may take.
_SHARE_OF_MEMORY = 0.8

#: Threads that end servers which nothing referred to: as where a cell of a notebook runs again.
_ENDING: list[threading.Thread] = []
#: Maximum wait of a start for each of them.
_END_S = 10.0

_SECONDS = Option("", "seconds", most=math.inf)
_FLAG = Option("", "flag")


class Server:
    """A running server. Trainers connect to its ``address``.

    Made by ``hs.run``; a context manager, or closed by ``close``.  It is stopped, too, when nothing
    refers to it any more.
    """

    def __init__(
        self,
        config: RunConfig,
        settings: RunSettings,
        durable: StateDirectory | None,
        http: tuple[str, int] | None,
        begin: Callable[[RunConfig], RunConfig],
    ) -> None:
        self._http: HttpService | None = None
        self._watch = Watch(config.share)
        with contextlib.ExitStack() as undo:
            if durable is not None:
                undo.callback(durable.close)
            if http is not None:
                with interrupts_held():
                    self._http = HttpService(http, self._watch)
                    undo.callback(self._http.close)
            with contextlib.ExitStack() as undo_directory:
                with interrupts_held():
                    directory = RunDirectory(settings.shm_dir)
                    undo_directory.callback(directory.close)
                undo_directory.pop_all()  # from here on it is the supervisor's
            self._supervisor = Supervisor(
                config,
                directory,
                settings.start_timeout_s,
                settings.worker_timeout_s,
                settings.worker_memory_bytes or 0,
                durable,
                lambda config: _within_memory(_served(begin(config)), str(directory.path)),
                self._watch,
            )
            undo.callback(self._supervisor.stop)
            undo.callback(self._watch.end)
            self._open = undo.pop_all()
        self._watch.begin(self._supervisor, looking=http is not None)
        self._finalizer = weakref.finalize(
            self, _end_forgotten, self.address, os.getpid(), self._open.close
        )
        self._finalizer.atexit = False  # then its processes are killed, which takes no time

    def __repr__(self) -> str:
        """Return its first address, its state, and its feeds with theirs."""
        supervisor = self._supervisor
        state = "draining" if supervisor.draining else "running"
        if supervisor.failure is not None:
            state = "failed"
        over = supervisor.feeds.outcome()
        feeds = [
            f"{name!r}" + ("" if name not in over else " failed" if over[name][0] else " ended")
            for name in supervisor.feeds.names
        ]
        description = f"{'closed' if supervisor.stopped else state}; feeds: {', '.join(feeds)}"
        return f"<headrace_server.Server at {self.address}: {description}>"

    @property
    def address(self) -> str:
        """The first address."""
        return self._supervisor.addresses[0]

    @property
    def addresses(self) -> list[str]:
        """All addresses, in the order of ``bind``."""
        return list(self._supervisor.addresses)

    @property
    def http_address(self) -> str | None:
        """Where metrics, health and the page are, as a URL; None where ``http`` was not given."""
        return None if self._http is None else self._http.address

    @property
    def draining(self) -> bool:
        """Whether the server is draining: it hands out nothing more."""
        return self._supervisor.draining

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers of the locator and the workers, by name."""
        return self._supervisor.pids()

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return counters of each feed.

        ``batches``, ``rows``, ``redelivered``, ``stale``, ``expired``: of the hand-over.
        ``dropped``: rows by reason.  ``padding``: by bucket, elements with padding and without.
        ``classes``: rows ``accepted``, ``rejected`` and ``waiting`` by class, and ``changes``: for
        each partition, from which batch on which target proportions hold.  ``segments``, of a feed
        of segments: examples ``in_flight``, segments ``rewound``.  ``sources``, of a mix: examples
        drawn from each.  ``weights``: sum and count, of which the quotient is the weight of each
        now, over all partitions.  ``balance``, of
        a feed with ``balance=`` and ranks: ``rounds``, and the cost of the dearest rank over the
        mean, as the ``mean`` of all rounds and the ``worst`` of the last 100 of each partition.

        Further ``made`` (batches, rows, bytes), ``sent`` (batches and bytes, through shared memory
        and by wire), ``refused`` saves by code, rows ``read``, the ``seconds`` that reading and
        each stage took, the ``state`` in a word, what is ``waiting``, the ``standing`` of batches
        and (``segment_standing``) of segments, the feed's ``partitions``, ``trainers``, ``store``.
        """
        return cast(dict[str, dict[str, Any]], self._supervisor.look()["feeds"])

    def snapshot(self, feed: str | None = None, timeout_s: float = 120.0) -> dict[str, Any]:
        """Store a feed's state as it is now; return the token to go on from it.

        It contains every acknowledged commit.  ``feed`` may be left out where the server serves
        one.  Of a feed that several servers share, ``feed.snapshot()`` of a trainer and ``headrace
        snapshot`` take one.
        """
        _SECONDS.check(timeout_s, "timeout_s")
        return self._supervisor.snapshot(feed, timeout_s)

    def access(self) -> dict[str, Any]:
        """Return the known keys, the connected trainers and the counts of refusals.

        ``keys``: whether the server has keys.  ``known``: names of the keys that it lets in.
        ``present``: the number of connected trainers, by name ("" without keys).  ``refused``:
        connections and messages, by reason: ``unknown_key``, ``no_keys`` (this server has some),
        ``keys_not_used`` (this server has none), ``other_server_key``, ``handshake`` (broken off,
        for whatever reason), ``revoked``, ``trainers`` (over max_trainers), ``messages`` (over
        max_messages_per_s), ``garbage``, ``muted``, ``connections`` (used by no trainer, and reset
        to make room for others).
        """
        return dict(self._supervisor.look()["access"])

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every feed is over and its trainers know; return False after ``timeout_s``.

        For a trainer that does not acknowledge the end, it waits as long as the lease lasts.

        Raises the error when the server itself has failed.
        """
        if timeout_s is not None:
            _SECONDS.check(timeout_s, "timeout_s")
        done = self._supervisor.wait(timeout_s)
        self.check()
        return done

    def check(self) -> None:
        """Raise the error when the server itself has failed."""
        if self._supervisor.failure is not None:
            raise self._supervisor.failure

    def failed_feeds(self) -> dict[str, str]:
        """Return the feeds that have failed, with the reason."""
        return {
            feed: text for feed, (code, text) in self._supervisor.feeds.outcome().items() if code
        }

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for commits; return whether all came in time."""
        _SECONDS.check(timeout_s, "timeout_s")
        return self._supervisor.drain(timeout_s)

    def end(self, feed: str | None = None, cancel: bool = False) -> None:
        """Close the input of a feed for good, as ``feed.drain()`` does for a trainer.

        Rows that were read are still handed out, then all loops end normally, also after a restart
        of the server.  With ``cancel`` rows that are in no batch yet are dropped.  ``feed`` may be
        left out where the server serves one.  A server with a share of the feed closes its own.
        """
        _FLAG.check(cancel, "cancel")
        self._supervisor.end(feed, cancel)

    def restart(self, feed: str | None = None, force: bool = False) -> None:
        """Start a feed from its beginning, and forget all commits.

        ``FeedInUse`` while trainers use it, unless ``force``: they get ``FeedRewound`` then.  A
        state directory gets a new state of this feed; other feeds go on.  ``headrace restart``
        starts the shares of all servers.
        """
        _FLAG.check(force, "force")
        self._supervisor.restart(feed, force)

    def close(self) -> None:
        """Stop all processes and remove the shared memory.

        With a state directory the server announces its return: trainers of other processes wait for
        the next one, up to their ``timeout``.
        """
        self._open.close()
        self._finalizer.detach()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@taking(RunSettings)
def run(settings: RunSettings) -> Server:
    """Start a server for one pipeline (its feed is called ``default``) or several by name.

    By default it binds to a free port of 127.0.0.1.  An address that other machines can reach needs
    ``keys``, which also encrypt all traffic, or ``insecure=True``.

    ``partitions`` determines order, random draws and the rows that are dropped at the end; more
    workers than partitions are not started.  The next server with the same ``state_dir`` goes on
    where this one ended; it refuses another pipeline or other files.
    Without ``state_dir`` all state is in memory, and options for the directory are refused.

    ``resume`` takes the token of a snapshot, or a list of them for several feeds: each of these
    goes back to its snapshot.  ``start_timeout_s`` does not run while the index of a file grows.
    ``Server.http_address`` is the URL of ``http``.

    The options, with their defaults and bounds:
    """
    return start(settings)


def start(settings: RunSettings, origin: str = "") -> Server:
    """Start a server; its snapshots bear the name ``origin``."""
    refuse_in_worker("hs.run")
    for thread in _ENDING:  # it may have the address or the directory that is wanted
        Deadline(_END_S).join(thread)
    _ENDING[:] = [thread for thread in _ENDING if thread.is_alive()]
    require("google_crc32c", "server", "a server")  # before its workers miss it
    http = None if settings.http is None else http_place(settings.http)
    config = start_config(settings, () if http is None else ("{}:{}".format(*http),))
    tokens = as_tokens(settings.resume, {feed.name for feed in config.feeds})
    if settings.state_dir is not None:
        config = dataclasses.replace(config, index_directory=index_directory(settings.state_dir))
    if settings.state_dir is None or settings.durability == "off":
        settings.refuse_state()
        return Server(config, settings, None, http, lambda config: config)
    durable = StateDirectory(
        settings.state_dir,
        settings.durability or "power",
        settings.snapshots,
        KEEP_SNAPSHOTS if settings.keep_snapshots is None else settings.keep_snapshots,
        config.share,
        origin,
    )
    begin = partial(durable.begin, tokens=tokens, keep_partitions=settings.partitions is None)
    return Server(config, settings, durable, http, begin)


def _served(config: RunConfig) -> RunConfig:
    """Return the config with no more workers than there are partitions to run."""
    most = max(len(feed.owned) for feed in config.feeds)
    if config.workers > most:
        logger.warning(
            "workers=%d and partitions=%d: a worker runs whole partitions, so %d would idle and "
            "are not started; a new feed has as many partitions as workers, unless partitions= "
            "says how many, and keeps them in its state directory",
            config.workers,
            most,
            config.workers - most,
        )
        config = dataclasses.replace(config, workers=most)
    return config


def _end_forgotten(address: str, pid: int, close: Callable[[], None]) -> None:
    """End a server that nothing refers to, in a thread: this one may hold its lock."""
    if os.getpid() == pid:
        logger.warning(
            "the server at %s is stopped: nothing refers to it any more.  Keep what hs.run "
            "returns, or close() it",
            address,
        )
        thread = threading.Thread(target=close, name="headrace-end")
        _ENDING.append(thread)
        thread.start()


def _within_memory(config: RunConfig, directory: str) -> RunConfig:
    """Fit the slabs into the free shared memory (a container may have 64 MB)."""
    if config.slab_bytes:
        return config
    status = os.statvfs(directory)
    free = int(status.f_bavail * status.f_frsize * _SHARE_OF_MEMORY) // config.workers
    return dataclasses.replace(config, slab_bytes=max(1 << 20, min(1 << 30, free)))
