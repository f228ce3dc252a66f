"""Refused connections and messages, by reason: counted, and logged without flooding the log.

The first refusal of a peer for a reason is logged at once.  Further ones, and those of many peers,
are logged once a minute, with their number.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from headrace_proto import __version__, limits
from headrace_proto.errors import ServerError, UnknownFeed, VersionMismatch, near
from headrace_proto.messages import Hello

from .bounded_map import BoundedMap

logger = logging.getLogger("headrace.trainers")

_QUIET_S = 60.0
#: Lines at once about peers that were not seen before; a storm comes from many addresses.
_AT_ONCE = 20
#: Peers that are remembered, so that each is logged once only.
_REMEMBERED = 10_000


def check_version(hello: Hello) -> None:
    """Raise VersionMismatch where a trainer speaks another protocol."""
    if hello.version != limits.PROTOCOL:
        raise VersionMismatch(
            f"the trainer (headrace {hello.library}) speaks protocol {hello.version}, the "
            f"server (headrace {__version__}) {limits.PROTOCOL}: install the same release at both"
        )


def feed_named(name: str, feeds: Collection[str]) -> str:
    """Return the feed of a name, the only one without a name; UnknownFeed lists the others."""
    if not name and len(feeds) == 1:
        return next(iter(feeds))
    if name in feeds:
        return name
    listed = ", ".join(sorted(map(repr, feeds)))
    what = f"there is no feed {name!r}" if name else "feed= is needed"
    raise UnknownFeed(f"{what}; this server has {listed}{near(name, feeds)}")


def fault_of_message(error: Exception) -> ServerError:
    """Return the error that a trainer gets whose message this program failed to handle."""
    return ServerError(f"the message could not be handled: {type(error).__name__}: {error}")


@dataclass(slots=True)
class _Unlogged:
    since: float
    count: int = 0


@dataclass(slots=True)
class Refusals:
    """All refusals of one server."""

    counts: Counter[str] = field(default_factory=Counter)
    _peers: BoundedMap[tuple[str, str], None] = field(
        default_factory=lambda: BoundedMap(_REMEMBERED)
    )
    _unlogged: dict[str, _Unlogged] = field(default_factory=dict)
    _lines: int = 0
    _window: float = -_QUIET_S

    def add(
        self, reason: str, peer: str, text: str, now: float, fault: Exception | None = None
    ) -> None:
        """Count a refusal.  ``peer`` is its name as far as known, ``text`` the line of the log.

        Without a text it is only counted.  ``fault``: the fault of this program that made it
        refuse; its traceback is logged too.
        """
        self.counts[reason] += 1
        if not text:
            return
        if now - self._window >= _QUIET_S:
            self._window, self._lines = now, 0
        seen = (reason, peer) in self._peers
        if not seen and self._lines < _AT_ONCE:
            self._lines += 1
            self._peers[reason, peer] = None
            logger.log(logging.ERROR if fault else logging.WARNING, "%s", text, exc_info=fault)
            return
        self._unlogged.setdefault(reason, _Unlogged(now)).count += 1

    def tick(self, now: float) -> None:
        """Log the number of those that were not logged one by one."""
        for reason, unlogged in list(self._unlogged.items()):
            if now - unlogged.since >= _QUIET_S:
                del self._unlogged[reason]
                logger.warning("%d more were refused (%s)", unlogged.count, reason)
