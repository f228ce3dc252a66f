"""The processes of a server, its locator and its workers: started, given orders, replaced, ended.

    begin_locator(), begin() ─► locator, workers ─► order(), ask() ─► … ─► end()
                                   │ die
                                   └─► on_death ─► begin_next() ─► the next life, once it can be
                                                                   started

One thread waits for deaths, and a few read the pipes of the children.  The lock is the
supervisor's.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.errors import HeadraceError, ServerError
from headrace_proto.interrupts import interrupts_held
from headrace_proto.placement import next_term

from ..journal.state_directory import StateDirectory
from ..net.public_socket import place_in, worker_binds
from ..pipeline.declaration import Plain
from ..process.child import Child, end, environment
from ..process.config import BEGINNING, Life, RunConfig
from .asks import LOCATOR
from .liveness import Patience, Post, end_of, gets_further, obituary

if TYPE_CHECKING:
    from .supervisor import Supervisor

logger = logging.getLogger("headrace.server")

_BACKOFF_S = 0.1
#: Time between two attempts to start a worker where the system refuses one.
_RETRY_S = 1.0
_NOT_NOW = "%s can not be started now: %s"
_STOP_S = 5.0
#: Maximum time for an owner to inform its trainers of the stop; user code may delay it.
_WORDS_S = 2.0


class Starts:
    """The starts of a server's owners, each with a term of its own: no two give out the same token.

    begin_all() ─► begun[owner] ─► … its death ─► begin(owner) ─► begun[owner] ─► …

    With a state directory each start is stored there before it begins.  ``config`` is that of the
    last start.
    """

    def __init__(self, config: RunConfig, durable: StateDirectory | None) -> None:
        if not config.term:  # tokens of its starts must differ
            config = replace(config, term=next_term(secrets.randbits(30), config.share))
        self.config = config
        self._durable = durable
        self.begun: dict[int, RunConfig] = {}  # by owner, the config of its start
        # A worker may die while the server begins anew.
        self._lock = threading.RLock()

    def begin_all(self) -> None:
        """Begin all owners: the first with the term of the server's start."""
        with self._lock:
            for number in range(self.config.workers):
                if number:
                    self.config = self._next_term()
                self.begun[number] = self.config

    def begin(self, owner: int) -> None:
        """Begin an owner again after its death: it goes on as after a start of the server."""
        with self._lock:
            if self._durable is not None:
                self.config = self._durable.next_start(self.config)
            else:
                self.config = self._next_term()
            self.begun[owner] = self.config

    def take_back(self, feed: str, term: int) -> None:
        """Begin all owners again, with a feed taken back to its prepared state, or its beginning.

        No process may have its stores open.
        """
        with self._lock:
            if self._durable is not None:
                self.config = self._durable.take_back(self.config, feed, term)
            else:
                journals = Path(self.config.journals[0], "feeds", feed)
                shutil.rmtree(journals, ignore_errors=True)
                begun = self.config.feed(feed)
                anew = replace(begun, generation=begun.generation + 1, snapshot=BEGINNING)
                feeds = tuple(anew if feed is begun else feed for feed in self.config.feeds)
                self.config = replace(self._next_term(), feeds=feeds)
            self.begin_all()

    def _next_term(self) -> RunConfig:
        if self._durable is not None:
            return self._durable.next_term(self.config)
        return replace(self.config, term=next_term(self.config.term, self.config.share))


class Crew:
    """All children of one server, which takes their reports and judges their deaths."""

    def __init__(self, server: Supervisor, patience: Patience) -> None:
        self._server, self.lock, self.starts = server, server.lock, server.starts
        self.patience = patience
        self.clock = AwakeClock(2 * patience.look_s)  # of the watcher
        self._closed = threading.Event()  # one start of the server has ended, and no next has begun
        self._closed.set()
        self._timeout_s, self._deadline = 0.0, Deadline(0.0)  # of a begin
        self._locator: Child | None = None
        self.posts: list[Post] = []
        self._thread: threading.Thread | None = None  # which waits for deaths
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)

    def begin_locator(self, timeout_s: float) -> None:
        """Start the locator, which reads its keys and then waits for ``begin``.

        A wait for all of them lasts at most ``timeout_s``, or longer while workers make progress.
        """
        self._timeout_s, self._deadline = timeout_s, Deadline(timeout_s)
        config = self.starts.config
        message = {"keys": config.keys, "log_level": config.log_level}
        with self.lock, interrupts_held():  # until then its reports wait
            self._locator = self._spawn("locator", "headrace_server.server.locator", message)
        self._watch()

    def begin(self) -> None:
        """Start all workers."""
        config = self.starts.config
        diaries = [Path(config.directory) / f"diary-{i}" for i in range(config.workers)]
        posts = [Post(i, d, self.patience) for i, d in enumerate(diaries)]
        with self.lock:
            self.posts = posts
            if self._locator is not None:  # else the server has failed
                self._locator.configure(config)
        for post in posts:
            self._fill(post)

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until children that begin have done something; raise where the server has ended."""
        openings, ended = [post.opening for post in self.posts], self._server.ended
        with self.lock:
            while True:
                self._deadline.wait(
                    lambda at_most_s: self.lock.wait_for(lambda: done() or ended(), at_most_s)
                )
                error = ended()
                if done():
                    return
                if error is not None:
                    raise error
                before, openings = openings, [post.opening for post in self.posts]
                if not any(map(gets_further, before, openings)):
                    at = "".join(f"; of worker {s.number}: {s.doing}" for s in self.posts[:4])
                    raise ServerError(
                        f"waited start_timeout_s={self._timeout_s:g} seconds in vain for {what}{at}"
                    )
                self._deadline = Deadline(self._timeout_s)

    def resume(self) -> None:
        """Start all workers, whose lives have begun; try again where the system refuses one."""
        self._watch()
        for post in self.posts:
            try:
                self._fill(post)
            except OSError as error:
                logger.warning(_NOT_NOW, post.name, error)
                post.refused, post.begun = str(error), True
                self.begin_next(post, f"{post.name} was replaced", _RETRY_S)

    def _watch(self) -> None:
        with self.lock, interrupts_held():
            self._closed.clear()
            self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
            self._thread.start()

    def _spawn(self, name: str, module: str, config: object) -> Child:
        child = Child(module, name, config, self._server.on_event, environment())
        born = self._server.born
        born[:] = [one for one in born if one.wait(0) is None] + [child]
        return child

    def _fill(self, post: Post) -> None:
        with self.lock, interrupts_held():
            if self._closed.is_set() or post not in self.posts or post.child is not None:
                return
            post.begin()
            config, number = self.starts.config, post.number
            life = Life(
                config=self.starts.begun[number],
                worker=number,
                number=post.life,
                diary=post.diary_file.path,
                binds=tuple(worker_binds(config, number, post.addresses)),
                **self._server.begun(),
            )
            child = post.child = self._spawn(post.name, "headrace_server.worker.worker", life)
            os.eventfd_write(self._wake, 1)
            for values in self._server.asks.unanswered(
                number
            ):  # the life before may have died with them
                child.order(**values)

    def locate(self, post: Post, addresses: Sequence[str]) -> None:
        """Tell the locator where a worker is, by the port or path of each address of the server."""
        if addresses and post.addresses:
            by_place = dict(zip(map(place_in, addresses), post.addresses, strict=True))
            self.order(LOCATOR, order="located", worker=post.number, places=by_place)

    # Deaths

    def _look(self) -> float:
        """Begin the lives that are due, and look at the workers; return when to look again."""
        for post in self.posts:
            if time.monotonic() >= post.due_at:
                self._begin(post)
            post.look(self.clock())
        due_at = min((post.due_at for post in self.posts), default=math.inf)
        return min(self.patience.look_s, max(0.0, due_at - time.monotonic()))

    def _bury(self, child: Child) -> None:
        code = child.wait(_STOP_S)
        child.close()
        post = next((post for post in self.posts if post.child is child), None)
        words = obituary(child, end_of(code) if post is None else post.end(code))
        with self.lock:
            if post is None:
                self._locator = None
                self._server.on_death(words, None, None)
                return
            entry = post.vacate()
        self.order(LOCATOR, order="worker_died", worker=post.number)
        self._server.on_death(words, post, entry)

    def begin_next(self, post: Post, words: str, wait_s: float = 0.0) -> None:
        """Begin a worker's next life after its death, which ``words`` describe."""
        post.words, post.due_at = words, time.monotonic() + wait_s

    def _begin(self, post: Post) -> None:
        """Begin a life, in two steps, or try again later.

        The system may have no process to spare, or the disk is full: then commits wait for room.
        """
        again_s = math.inf
        try:
            if post.begun:
                self._fill(post)
                post.begun = False
            else:
                self.starts.begin(post.number)
                post.begun, again_s = True, _BACKOFF_S
        except HeadraceError as error:
            self._server.feeds.give_up(f"{post.words}\nThe next life can not begin: {error}")
        except OSError as error:
            logger.warning(_NOT_NOW, post.name, error)
            post.refused, again_s = str(error), _RETRY_S
        post.due_at = time.monotonic() + again_s

    # Processes, by name

    def by_number(self) -> dict[int, Child | None]:
        """Return the locator and all workers; None in place of a dead one."""
        with self.lock:
            return {LOCATOR: self._locator, **{post.number: post.child for post in self.posts}}

    def children(self) -> list[Child]:
        """Return the children that live."""
        return [child for child in self.by_number().values() if child is not None]

    def number_of(self, child: Child) -> int | None:
        """Return the number of a worker, or LOCATOR; None of a child that was replaced."""
        return next((number for number, known in self.by_number().items() if known is child), None)

    def order(self, number: int | None = None, /, **values: Plain) -> None:
        """Send an order to all workers, to one of them, or to the locator."""
        for owner, child in self.by_number().items():
            if child is not None and (owner == number or (number is None and owner != LOCATOR)):
                child.order(**values)

    # The end

    def _close(self) -> None:
        """Notice no death from now on, and start no child again.

        A death that was noticed is handled first.
        """
        with self.lock:
            self._closed.set()
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for post in self.posts:
            post.due_at, post.begun = math.inf, False

    def end_workers(self) -> None:
        """End all workers; ``resume`` starts their next lives."""
        self._close()
        with self.lock:
            workers = [post.child for post in self.posts if post.child is not None]
            for post in self.posts:
                post.vacate()
        end(workers, 0.0)
        for post in self.posts:
            self.order(LOCATOR, order="worker_died", worker=post.number)

    def end(self) -> None:
        """End all processes, once they have told their trainers."""
        self._close()
        with self.lock:
            locator, self._locator = self._locator, None
            workers = {post.number: post.child for post in self.posts if post.child is not None}
            has_begun = bool(self.posts)
            self.posts = []  # a next life that begins just now finds no place to fill
        for owner in workers.values():
            owner.order(order="stop")
        words = Deadline(_WORDS_S)
        unended = [n for n, owner in workers.items() if owner.wait(words.left_s) is None]
        end(list(workers.values()), 0.0)  # they hold nothing that a kill could hurt
        if locator is not None:
            if has_begun:  # else it waits for a config
                locator.order(order="stop", unended=unended)
            end([locator], _STOP_S if has_begun else 0.0)

    def close(self) -> None:
        """Let go of its files, after ``end``."""
        os.close(self._wake)

    def _run(self) -> None:
        look_s = 0.0
        try:
            while True:
                children = {child.pidfd: child for child in self.children()}
                ready = wait([self._wake, *children], look_s)
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                if self._closed.is_set():
                    return
                for fd in children.keys() & ready:
                    self._bury(children[fd])
                look_s = self._look()
        except Exception as error:  # else a start would wait for workers that nobody starts
            logger.exception("the watch over the processes of the server has ended")
            text = f"its processes are not watched any more: {type(error).__name__}: {error}"
            self._server.feeds.give_up(text)
