"""What the children of a server have told, until somebody asks.

    front  ─► ready ───────────┐
    owners ─► open, over, bad ─┴► hear() ─► [ the last of each kind ]

Each worker owns the leases of its partitions.  What all of them have to say is said when the last
one has.  A feed fails when one of them fails it.

Nothing here waits or locks: whoever hears and asks from several threads holds a lock, and wakes
those who wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_proto.errors import HeadraceError, from_code

from ..core.rewinding import TOUCHED, USED
from .asks import FRONT
from .gathering import added

__all__ = ["Reports"]

#: Counts of partitions over all lives of their owner, which knows them once it has opened these.
_LASTING = ("batches", "rows", "dropped", "padding", "classes", "segments")


class Reports:
    """The last words of each kind."""

    def __init__(self, owners: int = 1) -> None:
        self.ready = False  # whether the front listens
        self.addresses: list[str] = []  # on which it does
        self.over: dict[str, tuple[str, str]] = {}  # feeds that ended: error code, text
        self._owners = owners
        self._open: set[int] = set()  # owners that have opened the sources of all feeds
        self._dropped: dict[str, dict[int, dict[str, int]]] = {}  # by feed and owner
        self._well: dict[str, set[int]] = {}  # owners to whom a feed has ended well
        self._bad: dict[str, dict[int, dict[str, int]]] = {}  # examples, by feed and owner
        self._counts: dict[str, dict[int, dict[str, Any]]] = {}  # … and what they counted last
        self.failed: dict[str, tuple[str, str]] = {}  # feeds that lives are to begin with as such
        self.marked: dict[str, list[list[Any]]] = {USED: [], TOUCHED: []}  # feeds, generations
        self._before: dict[int, Any] = {}  # by owner: what earlier servers saw committed

    @property
    def open(self) -> bool:
        """Whether the sources of all feeds are open."""
        return len(self._open) == self._owners

    def hear(self, event: Mapping[str, Any], owner: int = 0) -> None:
        """An owner of this number says something, or the front."""
        kind = event.get("event")
        if kind == "ready" and owner == FRONT:
            self.addresses = list(event["addresses"])
            self.ready = True
        elif kind == "open":
            self._open.add(owner)
            self._before.setdefault(owner, event.get("before", {}))
        elif kind in self.marked:
            self.marked[kind].append([event["feed"], event["generation"]])
        elif kind == "bad":
            self._bad.setdefault(event["feed"], {})[owner] = dict(event["bad"])
        elif kind == "over":
            self._hear_over(owner, event["feed"], event["code"], event["text"], event["dropped"])

    def _hear_over(
        self, owner: int, feed: str, code: str, text: str, dropped: Mapping[str, int]
    ) -> None:
        self._dropped.setdefault(feed, {})[owner] = dict(dropped)
        well = self._well.setdefault(feed, set())
        if code:
            self.fail(feed, code, text)
        else:
            well.add(owner)
            if len(well) == self._owners:
                self.over.setdefault(feed, ("", ""))

    def fail(self, feed: str, code: str, text: str) -> None:
        """A feed has failed; the first reason stands."""
        self._dropped.setdefault(feed, {})
        self.over.setdefault(feed, (code, text))

    def bad(self, feed: str) -> dict[str, int]:
        """Bad examples of a feed by what is wrong with them, over several owners."""
        return added(self._bad.get(feed, {}).values())

    def begun(self, owner: int) -> dict[str, Any]:
        """How the feeds stand, as a life of an owner has to know it: see ``House.begin``."""
        return {
            "failed": self.failed,
            "all_opened": self.marked if self.open else None,
            "before": self._before.get(owner, {}),
        }

    def begin_anew(self, feed: str) -> None:
        """A feed begins again: it is over no more."""
        for known in (self.over, self._dropped, self._well, self._bad, self._counts):
            known.pop(feed, None)

    def give_up(self, feeds: Iterable[str], text: str) -> None:
        """Feeds that are not over have failed with the server."""
        for feed in feeds:
            self.over.setdefault(feed, ("server", text))
            self._dropped.setdefault(feed, {})

    def lasting(self, answers: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The owners' reports of all feeds, with counts that a life which opens them has not."""
        return [{**one, "feeds": self._lasting(n, one["feeds"])} for n, one in answers.items()]

    def _lasting(self, owner: int, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Feeds as an owner tells of them; while it opens them, with their counts of before."""
        lasting = {}
        for name, told in feeds.items():
            counts = self._counts.setdefault(name, {})
            if told["state"] != "opening":
                counts[owner] = {n: told[n] for n in _LASTING if n in told}
            lasting[name] = {**told, **counts.get(owner, {})}
        return lasting

    def failed_early(self) -> HeadraceError | None:
        """A feed that can not even be opened.  What is wrong with data is told to trainers."""
        for code, text in self.over.values():
            if code not in ("", "data"):
                return from_code(code, text)
        return None

    def outcome(self) -> dict[str, tuple[str, str, dict[str, int]]]:
        """Of each feed that is over: error code (empty = well), text, rows dropped by reason."""
        return {
            feed: (*end, added(self._dropped[feed].values())) for feed, end in self.over.items()
        }
