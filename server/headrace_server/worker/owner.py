"""A worker that owns its feeds: it makes their batches, leases them, and takes commits and states.

    trainers of this host ══ channels ═══► ┌─ reception ─► desks ─┐
    trainers elsewhere ══ public socket ═► │                      ├─► outbox ─► trainers
    supervisor ── orders ────────────────► └─ partitions ◄────────┘

One thread, one poll, one loop: handle messages of trainers, carry out what the desks say, make the
batch that is wanted next.  So one place judges, stores and answers a commit, and the answer leaves
together with the batch that it allows.

A step that reads nothing and calls no function of the user is short, and is made under the lock.
Another one may take long, and must not block trainers: it is made without the lock, and a second
thread, the *porter*, handles messages and orders once the step has taken 20 ms, hands out batches
that are ready, and accepts commits.  Calls that concern the partition at work wait in its desk.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.spin import Spin, cores

from ..leasing.desk import Work
from ..net.channel_server import SPARE, ChannelServer
from ..net.keyring import KeyRing
from ..net.public_socket import PublicSocket
from ..net.sockets import CanNotBind, open_files_limit
from ..process.child import Pipe
from ..process.config import Life, RunConfig
from ..process.worker_diary import Diary, long_inside
from .commits import Stores
from .outbox import Outbox
from .partitions import Events, Partitions, Poll
from .served_feed import ServedFeed, ServedPartition
from .sessions import SessionTable, remove_files
from .switchboard import Switchboard

R = TypeVar("R")
logger = logging.getLogger("headrace.trainers")

_TICK_S = 0.1
#: Maximum number of messages of the public socket before trainers of this host get their turn.
_BURST = 256
#: Descriptors of one trainer: its session's file, its connection and its channel, …
_FILES_EACH = 3
#: … of connections without a session, but no more than a quarter of all, …
_STRANGERS = 1024
#: … and of everything else, data and state buffers included, but no more than half of all.
_OTHERS = 256
#: Maximum wait for an address that another process has.
_BIND_S = 3.0
#: Maximum rest while blocks are being sent, whose memory may be wanted.
_SENDING_S = 0.01
#: The porter takes over when a step has taken this long …
_LATE_S = 0.02
#: … and checks that at this interval.
_LOOK_S = 0.05
#: Rounds in which the porter handles replies to its own answers before it sleeps again.
_ROUNDS = 8


class Owner:
    """One life of the owner of some partitions of a server's feeds."""

    def __init__(self, life: Life, pipe: Pipe) -> None:
        config, diary = life.config, Diary(life.diary)
        logger.setLevel(config.log_level)
        directory = Path(config.directory)
        _remove_leftovers(config, life)
        trainers, connections = _bound(config.max_trainers, open_files_limit())
        ring = None if config.keys is None else KeyRing(config.keys)
        self._socket = PublicSocket(ring, connections)
        addresses = _bind(self._socket, life.binds, config)
        pipe.report("bound", addresses=addresses)
        lives = max(life.number, config.start - 1 - life.worker)  # with those of earlier servers
        sessions = SessionTable(directory, trainers, life.worker, config.workers, lives)
        channels = ChannelServer(
            directory / f"channels-{life.worker}",
            trainers + SPARE,
            sessions.by_connection.__contains__,
        )
        self._sessions, self._channels, self._pipe = sessions, channels, pipe
        self._outbox = Outbox(self._socket, sessions, channels)
        self._clock = AwakeClock(2 * _TICK_S)
        feeds = {
            feed.name: ServedFeed(feed, config, life.worker, pipe.report) for feed in config.feeds
        }
        stores = Stores(
            *config.journals,
            fail=lambda part, error: self._partitions.fail(part, error),
            term=config.term,
            window=config.max_credits,
        )
        self._partitions = Partitions(life, diary, feeds, stores)
        self._outbox.blocks = self._partitions.blocks
        self._switchboard = Switchboard(
            config=config,
            worker=life.worker,
            feeds=feeds,
            partitions=self._partitions,
            pipe=pipe,
            clock=self._clock,
            outbox=self._outbox,
            inside=lambda: long_inside(life.worker, diary),
        )
        self._next_tick = 0.0
        self._numbers = channels.fileno(), pipe.fileno()
        self._public = frozenset(self._socket.filenos())
        self._poller = select.epoll()
        self._spin = Spin(cores() - config.workers + 1)  # a core for each owner, and one more
        self._closed = self._ended = False
        self._lock = threading.RLock()  # guards everything but the partitions
        self._working_since = 0.0  # when the current step began; 0 between steps
        self._switchboard.begin(life.begun)

    def filenos(self) -> Iterator[int]:
        """Yield the descriptors that a child of this process must close."""
        yield from self._socket.connections.open_files()
        yield from self._channels.filenos()

    def run(self) -> None:
        """Open the feeds, and serve them until an order to stop."""
        switchboard, partitions, poller = self._switchboard, self._partitions, self._poller
        socket, channels = self._socket, self._channels
        logs = partitions.logs
        stores, durable = partitions.stores.fileno(), logs.fileno()
        for fileno in (*self._numbers, *self._public, stores, durable):
            if fileno >= 0:
                poller.register(fileno, select.EPOLLIN)
        threading.Thread(target=self._attend, name="headrace-porter", daemon=True).start()

        def rest(at_most_s: float) -> Events:
            # A thread that writes would wait for the interpreter while this one polls.
            expects = channels.anybody or socket.connections.used
            expects = expects and not partitions.stores.writing
            return self._spin.wait(poller.poll, at_most_s, expects)

        with self._lock:
            self._open()
            gc.freeze()  # else a full collection stops trainers for 10 to 20 ms
            busy, look_at = True, 0.0
            while not switchboard.stopping:
                ready = dict(poller.poll(0) if busy else self._idle(rest))
                if stores in ready:
                    partitions.stores.call_stored()
                self._receive(ready)
                if durable in ready:
                    logs.clear_wake()
                logs.flush()  # before ``next_work``: a feed that waits for these items has work now
                if (now := time.monotonic()) >= look_at:
                    look_at = now + _TICK_S / 10
                    partitions.tick(now)
                found = partitions.next_work()
                if switchboard.waits:
                    switchboard.act()
                busy = bool(channels.unread)
                if found is not None:
                    self._make(*found)
                    busy = True
                busy = self._send_out() or busy or (socket.stirred and socket.look())
            logs.close()
        self._ended = True

    def _open(self) -> None:
        """Open all logs and partitions, and then the desk of each feed."""
        for name in self._partitions.logs.names:
            self._step(self._partitions.open_log, name)
            self._catch_up()
        for feed in self._switchboard.feeds.values():
            for part in feed.partitions.values():
                if feed.failure is None:
                    self._step(self._partitions.open, part)
                    self._catch_up()
            if feed.failure is None:
                self._switchboard.open(feed)
            self._switchboard.act()

    def _make(self, part: ServedPartition, work: Work) -> None:
        """Make the next wanted batch, and more while the batches can wait for others.

        A step that reads nothing is short, so the porter need not have the lock meanwhile.
        """
        partitions, switchboard, outbox = self._partitions, self._switchboard, self._outbox
        if outbox.lines:  # else ready batches would wait for those made next
            outbox.flush()
        while True:
            reads, began = partitions.may_read(part), time.monotonic()
            if reads:
                self._send_out()
                self._store()
                part.feed.desk.begin(work)
                made = self._step(partitions.make_meanwhile, part, work)
            else:
                made = partitions.make(part, work)
            now = time.monotonic()
            partitions.made(part, work, made, now, now - began)
            if reads:
                self._catch_up()
            goes_on = not reads and isinstance(made, list) and outbox.gathers()
            found = partitions.next_work() if goes_on else None
            if switchboard.waits:
                switchboard.act()
            if found is None:
                return
            part, work = found

    def _send_out(self) -> bool:
        """Send batches; then store commits if they are due; return whether they were.

        Store a part of them if they are not urgent: trainers would wait, and fall asleep.
        """
        self._outbox.flush()
        stores = self._partitions.stores
        return stores.due and self._store(stores.urgent)

    def _store(self, whole: bool = True) -> bool:
        """Store the commits of trainers, and answer them, or do a part of that.

        Return whether there were any.
        """
        stored = self._partitions.stores.write(whole)
        if stored:
            self._switchboard.act()
            self._outbox.flush()
        return stored

    def _idle(self, rest: Poll) -> Events:
        """Prepare batches, store commits, or rest; return events, if there are.

        It looks for events in between, and after each part of a record of commits.
        """
        poll = self._poller.poll
        if events := poll(0) or self._partitions.prepare(poll):
            return events
        if self._partitions.calls and (part := self._partitions.begin_call()) is not None:
            self._step(self._partitions.call, part, lambda: bool(self._switchboard.deferred))
            self._partitions.called(part)
            self._catch_up()
            return poll(0)
        if self._partitions.stores.ripe:
            self._store(whole=False)
            return poll(0)
        due_at = min(self._outbox.due_at, self._partitions.stores.due_at)
        at_most_s = _SENDING_S if self._socket.sending else _TICK_S
        return self._partitions.rest(rest, max(0.0, min(at_most_s, due_at - time.monotonic())))

    def _receive(self, ready: Collection[int]) -> None:
        """Handle messages and orders; the caller then makes what the desks want."""
        switchboard, (channels, pipe) = self._switchboard, self._numbers
        socket, near = self._socket, channels in ready
        if near or self._channels.unread:
            switchboard.reception.receive_from_channels()
        if len(ready) > near or socket.stirred:
            if not self._public.isdisjoint(ready) or socket.pending:
                socket.update(self._clock())
            if socket.waits:
                switchboard.reception.receive_from_socket(_BURST)
            if pipe in ready:
                for order in self._pipe.read_orders():
                    switchboard.obey(order)
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            switchboard.waits = True
            switchboard.reception.tick(self._clock())
            self._partitions.logs.tick(self._clock())
            self._channels.tick()
        if socket.sending:
            socket.sweep()

    def _step(self, step: Callable[..., R], *values: object) -> R:
        """Let the partitions work; the porter may use everything else meanwhile.

        ``_catch_up`` follows, after the desk has the result.
        """
        self._switchboard.deferred = []
        self._working_since = time.monotonic()
        self._lock.release()
        try:
            return step(*values)
        finally:
            self._lock.acquire()
            self._working_since = 0.0

    def _catch_up(self) -> None:
        """Make the calls deferred in a step, after those that the desk had deferred itself."""
        deferred, self._switchboard.deferred = self._switchboard.deferred, None
        for action, arguments in deferred or ():
            action(*arguments)

    def _attend(self) -> None:
        """Serve trainers while a step takes long, as the porter."""
        try:
            while not self._ended:
                time.sleep(_LOOK_S)
                since = self._working_since
                if not since or time.monotonic() - since < _LATE_S:
                    continue
                with self._lock:
                    self._serve_meanwhile()
                    # Between steps the other thread ends the loop, and says goodbye to trainers.
                    if self._switchboard.stopping and self._working_since:
                        self.abandon_step()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _serve_meanwhile(self) -> None:
        for _ in range(_ROUNDS):
            ready = dict(self._poller.poll(0))
            if self._working_since:
                self._receive(ready)
                self._partitions.hand_out()
                self._switchboard.act()
                stores, logs = self._partitions.stores, self._partitions.logs
                if stores.fileno() in ready:
                    stores.call_stored()
                if logs.fileno() in ready:
                    logs.clear_wake()
                logs.flush()
                if stores.due:
                    stores.write()
                self._switchboard.act()
                self._outbox.flush()
            if not ready:
                return

    def abandon_step(self) -> None:
        """End the process during a step that may never return."""
        self.close()
        os._exit(0)

    def close(self) -> None:
        """Tell all trainers that the server stops."""
        if not self._closed:
            self._closed = True
            self._switchboard.reception.close()
            self._socket.close()


def _bind(socket: PublicSocket, binds: Sequence[str], config: RunConfig) -> list[str]:
    """Bind to the addresses of this worker, which the life before may have for a moment.

    CanNotBind names one that another process has.
    """
    deadline = Deadline(_BIND_S)
    found: dict[str, str] = {}
    for bind, public in zip(binds, config.binds, strict=True):
        while bind not in found:
            try:
                (found[bind],) = socket.bind([bind])
                continue
            except CanNotBind as error:
                if not deadline.left_s:
                    if public.endswith((":*", ":0")) and bind != public:  # any port will do
                        (found[bind],) = socket.bind([public])
                        continue
                    raise CanNotBind(
                        f"{error}: it is a worker's, of the server at {public}"
                    ) from None
            time.sleep(_LOOK_S)
    return [found[bind] for bind in binds]


def _bound(max_trainers: int, limit: int) -> tuple[int, int]:
    """Return the bounds of trainers and of connections; ``limit``: that of open files."""
    strangers = min(_STRANGERS, limit // 4)
    fit = max(1, (limit - strangers - min(_OTHERS, limit // 2)) // _FILES_EACH)
    if fit < max_trainers:
        logger.warning(
            "the limit of open files (%d, RLIMIT_NOFILE) allows sessions with %d trainers, and "
            "max_trainers=%d",
            limit,
            fit,
            max_trainers,
        )
    trainers = min(fit, max_trainers)
    return trainers, trainers + strangers // 2


def _remove_leftovers(config: RunConfig, life: Life) -> None:
    """Remove the shared memory of earlier lives; trainers' mappings stay valid."""
    if not life.number:
        return
    directory = Path(config.directory)
    for pattern in (f"slab-{life.worker}-*", f"channels-{life.worker}"):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
    remove_files(directory, life.worker, config.workers)
