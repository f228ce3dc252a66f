"""Refused connections and messages, by reason: counted, and logged without flooding the log.

The first ones of a minute are logged one by one; of further ones only their number is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from headrace_proto import __version__, limits
from headrace_proto.errors import ServerError, UnknownFeed, VersionMismatch, near
from headrace_proto.messages import Hello

logger = logging.getLogger("headrace.trainers")

_QUIET_S = 60.0
#: Lines of a minute.
_AT_ONCE = 20


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
class Refusals:
    """All refusals of one server."""

    counts: Counter[str] = field(default_factory=Counter)
    _unlogged: Counter[str] = field(default_factory=Counter)
    _lines: int = 0  # in this minute …
    _since: float = -_QUIET_S  # … which began then

    def add(self, reason: str, text: str, now: float, fault: Exception | None = None) -> None:
        """Count a refusal.  ``text``: the line of the log; without one it is only counted.

        ``fault``: the fault of this program that made it refuse; its traceback is logged too.
        """
        self.counts[reason] += 1
        self.tick(now)
        if text and self._lines < _AT_ONCE:
            self._lines += 1
            logger.log(logging.ERROR if fault else logging.WARNING, "%s", text, exc_info=fault)
        elif text:
            self._unlogged[reason] += 1

    def tick(self, now: float) -> None:
        """Once a minute, log the number of those that were not logged one by one."""
        if now - self._since < _QUIET_S:
            return
        self._since, self._lines = now, 0
        for reason, count in self._unlogged.items():
            logger.warning("%d more were refused (%s)", count, reason)
        self._unlogged.clear()
