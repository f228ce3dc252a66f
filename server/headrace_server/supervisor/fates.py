"""Judges the feeds of a server, by reports of its children and by the deaths of workers.

    a child tells  ─► hear() ─┐                         ┌─► all owners: the feed fails
    a worker died  ─► died() ─┼─► quarantine, reports ──┼─► the failure of the server
    is given up ─► give_up() ─┘                         └─► chronicle, log

A feed that fails at one owner fails at all.  The lock is the supervisor's.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace_proto.errors import HeadraceError, ServerError, UnknownFeed

from ..process.diary import Entry
from ..state.durable import Durable
from ..state.functions import Heard
from .asks import FRONT
from .casualties import Casualties
from .chronicle import Chronicle
from .posts import FORGIVEN, WINDOW_S, Slot
from .reports import Reports
from .starts import Starts

__all__ = ["Fates"]

logger = logging.getLogger("headrace.server")


class Fates:
    """Those of one server's feeds."""

    def __init__(
        self,
        lock: threading.Condition,
        starts: Starts,
        order: Callable[..., None],
        durable: Durable | None,
    ) -> None:
        self._lock = lock
        self._starts = starts
        self._order = order
        self._durable = durable
        self._functions: dict[str, Heard] = {}  # by feed
        self.casualties = Casualties(starts.config)
        self.chronicle = Chronicle()
        self.reports = Reports(starts.config.workers)
        self.failure: HeadraceError | None = None  # of the server

    @property
    def names(self) -> list[str]:
        return [feed.name for feed in self._starts.config.feeds]

    def named(self, feed: str | None) -> str:
        """The feed of a name; no name is that of the only feed."""
        if feed is None and len(self.names) == 1:
            feed = self.names[0]
        if feed is None:
            listed = ", ".join(map(repr, self.names))
            raise UnknownFeed(f"feed= is needed; this server has {listed}")
        if feed not in self.names:
            raise UnknownFeed(f"feed={feed!r:.120} is none of {', '.join(self.names)}")
        return feed

    # Children tell

    def hear(self, event: Mapping[str, Any], owner: int) -> None:
        """Note a report, and have a feed fail at all owners where it fails at one."""
        kind, feed, reports = event.get("event"), event.get("feed", ""), self.reports
        failed = feed in reports.over
        reports.hear(event, owner)
        if kind in (*reports.marked, "open") and reports.open:
            self._soon(self._order, order="all_opened", **reports.marked)
        if kind == "over" and event["code"] and not failed:
            self.chronicle.note("feed failed", f"{feed}: {event['text']}")
            self._soon(self.fail, feed, event["code"], event["text"])
        elif kind == "bad" and feed not in reports.failed:
            declared = (one.declaration for one in self._starts.config.feeds if one.name == feed)
            if text := next(declared).policy.too_bad(reports.bad(feed)):
                reports.fail(feed, "data", text)
                self._soon(self.fail, feed, "data", text)

    def _soon(self, action: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Tell the owners something, where there are several; one may take its time to read it."""
        if self._starts.config.workers > 1:
            copied = {name: copy.copy(value) for name, value in named.items()}
            threading.Thread(target=action, args=arguments, kwargs=copied, daemon=True).start()

    def hear_functions(self, worker: str, feed: str, functions: dict[str, Any]) -> None:
        """A worker runs these functions of the user, which may be others than before."""
        heard = self._functions.setdefault(feed, Heard(functions))
        changed = heard.again(functions)
        if changed:
            text = f"{worker} runs other functions of feed {feed!r} than those before it: {changed}"
            logger.warning("%s", text)
            self.chronicle.note("functions changed", text)
        elif self._durable is not None:
            try:
                self._durable.note_functions(feed, heard)
            except OSError as error:
                logger.warning("a later start can not compare the functions of %r: %s", feed, error)

    # Deaths

    def died(self, words: str, slot: Slot, entry: Entry, now: float) -> bool:
        """A worker died, with its diary.  Whether its next life is to begin."""
        with self._lock:
            verdict = self.casualties.died(entry, words)
        logger.warning("%s", words)
        self.chronicle.note("worker died", words)
        if verdict.failure is not None:
            feed, why = verdict.failure
            self.fail(feed, "data", why)
        if self._starts.config.replay is not None:
            for one in self._starts.config.feeds:
                if one.stateful:  # of others the next life goes on after what is done
                    text = f"{words}\nWith it went the place of the replay: start it again"
                    self.fail(one.name, "server", text)
        if verdict.quarantined:
            logger.warning("skipped from now on: %s", verdict.quarantined)
            self.chronicle.note("row left out", verdict.quarantined)
        if verdict.quarantined or verdict.failure is not None:
            slot.explain()
        if verdict.expected or slot.forgiven(now):
            return True
        times = f"It died {FORGIVEN + 1} times within {WINDOW_S:.0f} s and is given up."
        self.give_up(f"{words}\n{times}")
        return False

    def give_up(self, text: str) -> None:
        """A worker is not started again: the server has failed."""
        with self._lock:  # before a feed's end can wake somebody who waits
            self.failure = ServerError(text)
            self.reports.give_up(self.names, text)
            self._lock.notify_all()
        self._order(FRONT, order="fail", code="server", text=text)

    def fail(self, feed: str, code: str, text: str) -> None:
        """A feed can not go on, at any owner."""
        self.reports.failed.setdefault(feed, (code, text))  # for lives that begin
        self._order(order="fail", feed=feed, code=code, text=text)
