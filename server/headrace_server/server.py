"""``hs.run``: a whole server for as long as a ``with`` block lasts."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace_proto.process import process_name

from .arguments import (
    as_feeds,
    as_flag,
    as_integer,
    as_keys,
    as_path,
    as_seconds,
    as_tokens,
    bind_addresses,
    index_directory,
    refuse_in_worker,
)
from .pipeline import Pipeline
from .shell.config import RunConfig
from .shell.durable import Durable
from .shell.exposure import check_exposed
from .shell.flight import RECORDS
from .shell.living import Living, refuse_taken
from .shell.rundir import RunDirectory
from .shell.store import DURABILITIES
from .shell.supervisor import Supervisor
from .watch.options import HttpOptions

if TYPE_CHECKING:
    from .watch.http import HttpService

__all__ = ["Server", "run"]

logger = logging.getLogger("headrace.server")

#: Part of the free shared memory that all slabs together may take.
_SHARE_OF_MEMORY = 0.8
_PAGE = 4096
_RECORD_BYTES = 256 * 1024**2
_LEAST_RECORD_BYTES = 1024**2
#: A worker that has nothing to do says once a second that it lives.
_LEAST_WORKER_TIMEOUT_S = 2.0
#: An interpreter with numpy and the threads of its libraries.
_LEAST_MEMORY = 256 * 1024**2


class Server:
    """A running server.  ``address`` is what trainers connect to.

    Made by ``hs.run``; a context manager, or closed by ``close``.  It is stopped, too, when nothing
    refers to it any more.
    """

    def __init__(
        self,
        config: RunConfig,
        shm_dir: str | None,
        start_timeout_s: float,
        durable: Durable | None = None,
        worker_timeout_s: float = 60.0,
        worker_memory_bytes: int = 0,
        http: HttpOptions | None = None,
    ) -> None:
        self._durable = durable
        self._http: HttpService | None = None
        try:
            if http is not None:
                self._http = http.service()
            directory = RunDirectory(shm_dir)
            try:
                config = _within_memory(config, str(directory.path))
            except BaseException:
                directory.close()
                raise
            self._supervisor = Supervisor(
                config, directory, start_timeout_s, worker_timeout_s, worker_memory_bytes, durable
            )
        except BaseException:
            if self._http is not None:
                self._http.close()
            if durable is not None:
                durable.close()
            raise
        if self._http is not None:
            self._http.watch(self._supervisor)
        takes = *self.addresses, self.http_address or "", "" if durable is None else durable.path
        supervisor = self._supervisor
        self._living = Living(
            self,
            filter(None, map(str, takes)),
            end=functools.partial(_end, supervisor, self._http, durable),
            failed=lambda: supervisor.failure is not None,
        )

    def __repr__(self) -> str:
        """Its first address, its state, and its feeds with theirs."""
        supervisor = self._supervisor
        state = "draining" if supervisor.draining else "running"
        if supervisor.failure is not None:
            state = "failed"
        over = supervisor.outcome()
        feeds = [
            f"{name!r}" + ("" if name not in over else " failed" if over[name][0] else " ended")
            for name in supervisor.feeds
        ]
        told = f"{'closed' if supervisor.stopped else state}; feeds: {', '.join(feeds)}"
        return f"<headrace_server.Server at {self.address}: {told}>"

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
        """Whether nothing more is handed out, since ``drain`` or because somebody asked for it."""
        return self._supervisor.draining

    @property
    def pids(self) -> dict[str, int]:
        """Process numbers of the front and the workers, by name."""
        return self._supervisor.pids()

    @property
    def dropped(self) -> dict[str, dict[str, int]]:
        """Of each feed that is over: rows dropped, by reason."""
        return {feed: end[2] for feed, end in self._supervisor.outcome().items()}

    def stats(self) -> dict[str, dict[str, Any]]:
        """Counters of each feed so far.

        ``batches``, ``rows``, ``redelivered``, ``stale``, ``expired``: of the hand-over.
        ``dropped``: rows by reason.  ``padding``: by bucket, elements with padding and without.
        ``classes``: rows ``accepted``, ``rejected`` and ``waiting`` by class, and ``changes``: for
        each partition, from which batch on which target proportions hold.  ``segments``, of a feed
        of segments: examples ``in_flight``, segments ``rewound``.

        Further ``made`` (batches, rows, bytes), ``refused`` saves by code, rows ``read`` and
        ``quarantined``, the ``state`` in a word, what is ``waiting``, the ``standing`` of batches
        and (``segment_standing``) of segments, the feed's ``partitions``, ``trainers``, ``store``.
        """
        feeds: dict[str, dict[str, Any]] = self._supervisor.look()["feeds"]
        return feeds

    def snapshot(self, feed: str | None = None, timeout_s: float = 120.0) -> dict[str, Any]:
        """Keep all of a feed's state as it is now; the token to go on from it.

        All that trainers were told to be committed is in it.  ``feed`` may be left out where the
        server serves one.
        """
        return self._supervisor.snapshot(feed, timeout_s)

    def access(self) -> dict[str, Any]:
        """Who is let in, who is there, and who was refused.

        ``keys``: whether there are any.  ``known``: the trainers that have one.  ``present``: the
        number of trainers that are there, by name ("" without keys).  ``refused``: connections and
        messages, by reason: ``unknown_key``, ``no_keys`` (this server has some), ``keys_not_used``
        (this server has none), ``other_server_key``, ``handshake`` (broken off, for whatever
        reason), ``revoked``, ``trainers`` (over max_trainers), ``messages`` (over
        max_messages_per_s), ``garbage``, ``muted``, ``connections`` (used by no trainer, and reset
        to make room for others).
        """
        return self._supervisor.access()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every feed is over and its trainers know; False when the time ran out before.

        A trainer that does not acknowledge the end, or whose connection is lost, is waited for as
        long as its lease would last.

        Raises the error when the server itself has failed.
        """
        done = self._supervisor.wait(timeout_s)
        self.check()
        return done

    def check(self) -> None:
        """Raise the error when the server itself has failed."""
        if self._supervisor.failure is not None:
            raise self._supervisor.failure

    def failed_feeds(self) -> dict[str, str]:
        """The feeds that have failed, with the reason."""
        return {feed: text for feed, (code, text, _) in self._supervisor.outcome().items() if code}

    def drain(self, timeout_s: float) -> bool:
        """Hand out nothing more and wait for commits; whether all came in time."""
        return self._supervisor.drain(timeout_s)

    def end(self, feed: str | None = None, cancel: bool = False) -> None:
        """Close the input of a feed for good, as ``feed.drain()`` does for a trainer.

        Rows that were read are still handed out, then all loops end normally, also after a restart
        of the server.  With ``cancel`` rows that are in no batch yet are dropped.  ``feed`` may be
        left out where the server serves one.
        """
        self._supervisor.end(feed, cancel)

    def restart(self, feed: str | None = None, force: bool = False) -> None:
        """Start a feed from its beginning, whatever was committed.

        ``FeedInUse`` while trainers use it, unless ``force``: they get ``FeedRewound`` then.  A
        state directory gets a new state of this feed; other feeds go on.
        """
        self._supervisor.restart(feed, force)

    def close(self) -> None:
        """Stop all processes and remove the shared memory.

        With a state directory trainers of other processes are told that the server will be back,
        and wait for the next one up to their ``timeout``.
        """
        _end(self._supervisor, self._http, self._durable)
        self._living.left()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run(
    pipelines: Pipeline | Mapping[str, Pipeline],
    *,
    workers: int = 1,
    partitions: int | None = None,
    bind: str | list[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    state_dir: str | os.PathLike[str] | None = None,
    durability: str | None = None,
    allow_config_change: bool = False,
    resume: Any = None,
    snapshots: str | None = None,
    keep_snapshots: int | None = None,
    max_state_bytes: int = 1024**2,
    lease_ttl_s: float = 30.0,
    max_trainers: int = 4096,
    max_credits: int = 64,
    max_messages_per_s: int = 50_000,
    slab_bytes: int | None = None,
    shm_dir: str | os.PathLike[str] | None = None,
    start_timeout_s: float = 120.0,
    worker_timeout_s: float = 60.0,
    worker_memory_bytes: int | None = None,
    record: str | None = None,
    record_bytes: int | None = None,
    http: str | None = None,
    http_token_file: str | os.PathLike[str] | None = None,
) -> Server:
    """Start a server for one pipeline (its feed is called ``default``) or several by name.

    ``partitions`` belongs to the run: it fixes order, randomness and what is dropped at the end.
    By default a new feed has as many as ``workers``, and one that goes on from a ``state_dir`` or a
    snapshot as many as it had.  Where ``partitions`` is given any number of ``workers`` gives the
    same batches; more workers than partitions would idle.  ``bind`` is one or several ZeroMQ
    addresses (default: a free port of 127.0.0.1).

    With ``keys``, a directory that ``headrace keygen`` made, trainers are let in by their keys, and
    all that goes over the wire is encrypted.  An address that other machines can reach needs them,
    or ``insecure=True``.  There are at most ``max_trainers`` at once; of each worker one holds at
    most ``max_credits`` batches that are not committed, and it sends it at most
    ``max_messages_per_s``.

    With ``state_dir`` positions, commits and states survive the death of every process: a server
    that is started there again goes on where the one before was.  ``durability`` says what a commit
    outlives: "power" (default) the loss of power, "process" the death of any process; "off" keeps
    only the indexes of record files there.  A pipeline or files that are not those of the state are
    refused unless ``allow_config_change``.  Without ``state_dir`` all is in memory, and options of
    what it would hold are refused.

    ``resume`` is the token of a snapshot, or a list of them for several feeds: each of these is
    taken back to what it was then.  ``snapshots`` is a URL for fsspec where snapshots are copied
    to, and found when the state directory is another; ``keep_snapshots`` is how many stay of each
    feed (default: all).

    Of one example at most ``max_state_bytes`` of states are kept at the server.

    A trainer that is not heard of for ``lease_ttl_s`` loses what it holds.  ``slab_bytes`` bounds
    the shared memory of each worker, in ``shm_dir`` (default /dev/shm).  A server that is not ready
    after ``start_timeout_s`` is given up, unless a worker still gets further with what it opens (an
    index grows): then it has as long again.

    A worker that makes no progress for ``worker_timeout_s`` is ended and replaced: it must be more
    than the time in which your functions work through 64 examples.  ``worker_memory_bytes`` bounds
    what a worker takes beside shared memory and mapped files.

    ``record`` says what is recorded in the state directory of every batch: "rows" (default where
    there is one) which rows it held and whom it went to, "states" besides the states that went out
    with it, "off" nothing.  ``record_bytes`` (256 MiB) bounds that for each feed; the oldest goes.

    ``http`` is HOST:PORT ("127.0.0.1:8080"; port 0 is a free one) where metrics, health and a page
    that shows what goes on are served; ``Server.http_address`` says where that is.  Whoever reaches
    it may look, and who is on this machine may drain the server; with ``http_token_file`` who knows
    the token in it.
    """
    refuse_in_worker("hs.run")
    workers = as_integer("workers", workers, 1, 1024)
    count = workers if partitions is None else as_integer("partitions", partitions, 1, 4096)
    if durability not in (*DURABILITIES, "off", None):
        raise ValueError(f"durability={durability!r:.40} is not one of power, process, off")
    if record is not None and record not in RECORDS:
        raise ValueError(f"record={record!r:.40} is not one of {', '.join(RECORDS)}")
    lease_ttl_s = as_seconds("lease_ttl_s", lease_ttl_s)
    start_timeout_s = as_seconds("start_timeout_s", start_timeout_s)
    worker_timeout_s = as_seconds("worker_timeout_s", worker_timeout_s, _LEAST_WORKER_TIMEOUT_S)
    memory = 0
    if worker_memory_bytes is not None:
        memory = as_integer("worker_memory_bytes", worker_memory_bytes, _LEAST_MEMORY, 2**50)
    binds = bind_addresses(bind)
    check_exposed(binds, keys, as_flag("insecure", insecure))
    refuse_taken([("bind", one) for one in binds])
    config = RunConfig(
        feeds=tuple(as_feeds(pipelines, count)),
        directory="",
        binds=tuple(binds),
        keys=None if keys is None else as_keys(keys),
        max_trainers=as_integer("max_trainers", max_trainers, 1, 65_536),
        max_credits=as_integer("max_credits", max_credits, 1, 4096),
        max_messages_per_s=as_integer("max_messages_per_s", max_messages_per_s, 100, 10**9),
        workers=workers,
        lease_ttl_s=lease_ttl_s,
        heartbeat_s=min(1.0, lease_ttl_s / 4),
        max_state_bytes=as_integer("max_state_bytes", max_state_bytes, 1, 2**40),
        slab_bytes=0 if slab_bytes is None else as_integer("slab_bytes", slab_bytes, _PAGE, 2**50),
        index_directory=None if state_dir is None else index_directory(state_dir),
        record=record or "rows",
        record_bytes=_RECORD_BYTES
        if record_bytes is None
        else as_integer("record_bytes", record_bytes, _LEAST_RECORD_BYTES, 2**50),
        program=process_name(),
        log_level=logging.getLogger("headrace").getEffectiveLevel(),
        python_path=tuple(os.path.abspath(entry) for entry in sys.path),
    )
    shm = None if shm_dir is None else as_path("shm_dir", shm_dir)
    watched = HttpOptions.of(http, http_token_file)
    if http is not None:
        refuse_taken([("http", http)])
    tokens = as_tokens(resume, {feed.name for feed in config.feeds})
    keep = None
    if keep_snapshots is not None:
        keep = as_integer("keep_snapshots", keep_snapshots, 1, 10**9)
    if record == "off" and record_bytes is not None:
        raise ValueError(f"record_bytes={record_bytes} needs record, which is 'off'")
    if state_dir is None or durability == "off":
        for name, given in (
            ("durability", None if durability == "off" else durability),
            ("allow_config_change", as_flag("allow_config_change", allow_config_change) or None),
            ("resume", resume),
            ("snapshots", snapshots),
            ("keep_snapshots", keep_snapshots),
            ("record", None if record == "off" else record),
            ("record_bytes", record_bytes),
        ):
            if given is not None:
                raise ValueError(
                    f"{name}={given!r:.120} needs a state_dir (with durability 'power' or "
                    "'process'): it is about what is kept there"
                )
        config = dataclasses.replace(_served(config), record="off")
        return Server(config, shm, start_timeout_s, None, worker_timeout_s, memory, watched)
    refuse_taken([("state_dir", os.path.abspath(as_path("state_dir", state_dir)))])
    durable = Durable(
        as_path("state_dir", state_dir),
        durability or "power",
        snapshots,
        keep,
        as_flag("allow_config_change", allow_config_change),
    )
    try:
        config = _served(durable.begin(config, tokens, partitions is None))
    except BaseException:
        durable.close()
        raise
    return Server(config, shm, start_timeout_s, durable, worker_timeout_s, memory, watched)


def _served(config: RunConfig) -> RunConfig:
    """Decide who leases batches, with no more workers than there are partitions to run."""
    most = max(feed.partitions for feed in config.feeds)
    if config.workers > most:
        logger.warning(
            "workers=%d and partitions=%d: a worker runs whole partitions, so %d would idle and "
            "are not started; a new feed has as many partitions as workers, unless partitions= "
            "says how many, and keeps them in its state directory",
            *(config.workers, most, config.workers - most),
        )
        config = dataclasses.replace(config, workers=most)
    return config


def _end(supervisor: Supervisor, http: HttpService | None, durable: Durable | None) -> None:
    if http is not None:
        http.close()
    supervisor.stop()
    if durable is not None:
        durable.close()


def _within_memory(config: RunConfig, directory: str) -> RunConfig:
    """Fit the slabs into the shared memory that there is (a container may have 64 MB)."""
    if config.slab_bytes:
        return config
    status = os.statvfs(directory)
    free = int(status.f_bavail * status.f_frsize * _SHARE_OF_MEMORY) // config.workers
    return dataclasses.replace(config, slab_bytes=max(1 << 20, min(1 << 30, free)))
