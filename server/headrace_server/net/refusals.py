"""Refused connections and messages: counted and logged; connections that only make work are muted.

    garbage      answered once per connection; after 100 the connection is mute
    too many     messages in a second: Refused (limit), and the connection is mute
    fault        of this program at a message: Refused (server), and the connection is mute

The receiver drops messages of a mute connection unread.  A trainer that reconnects has another one.
The first refusals of a minute are logged, each text once; of all others only their number is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from headrace_proto import __version__, limits
from headrace_proto.channel import Frame
from headrace_proto.errors import (
    HeadraceError,
    LimitExceeded,
    ProtocolError,
    ServerError,
    UnknownFeed,
    VersionMismatch,
    code_of,
    near,
    one_line,
    shown,
)
from headrace_proto.log_messages import Produce
from headrace_proto.messages import FROM_TRAINER, Command, Hello, Refused

from .bounded_map import BoundedMap

logger = logging.getLogger("headrace.trainers")

_QUIET_S = 60.0
#: Lines of a minute.
_AT_ONCE = 20
#: Number of garbage messages after which a connection is mute.
_PATIENCE = 100
#: Maximum number of connections to remember; a forgotten one is answered once more.
_REMEMBERED = 10_000
_SECOND = 1.0

REVOKED = "this trainer's public key is not, or no longer, in trainers/ of the server's keys"


def check_version(hello: Hello | Command | Produce) -> None:
    """Raise VersionMismatch where a trainer speaks another protocol."""
    if hello.version != limits.PROTOCOL:
        raise VersionMismatch(
            f"the trainer (headrace {one_line(hello.library, 40)}) speaks protocol "
            f"{hello.version}, the server (headrace {__version__}) {limits.PROTOCOL}: install the "
            "same release at both"
        )


def feed_named(name: str, feeds: Collection[str]) -> str:
    """Return the feed of a name, the only one without a name; UnknownFeed lists the others."""
    if not name and len(feeds) == 1:
        return next(iter(feeds))
    if name in feeds:
        return name
    listed = ", ".join(sorted(map(repr, feeds)))
    what = f"there is no feed {name!r:.120}" if name else "feed= is needed"
    raise UnknownFeed(f"{what}; this server has {listed}{near(name, feeds)}")


def log_named(name: str, logs: Collection[str]) -> str:
    """Return the log of a name; UnknownFeed lists the others."""
    if name in logs:
        return name
    known = ", ".join(sorted(map(repr, logs))) or "none"
    raise UnknownFeed(
        f"there is no log {name!r:.120}; the feeds of this server read {known}{near(name, logs)}"
    )


def fault_of_message(error: Exception) -> ServerError:
    """Return the error that a trainer gets whose message this program failed to handle."""
    return ServerError(f"the message could not be handled: {type(error).__name__}: {error}")


@dataclass(slots=True)
class Refusals:
    """All refusals of one server."""

    counts: Counter[str] = field(default_factory=Counter)
    _unlogged: Counter[str] = field(default_factory=Counter)
    _lines: set[str] = field(default_factory=set)  # in this minute …
    _since: float = -_QUIET_S  # … which began then

    def add(self, reason: str, text: str, now: float, fault: Exception | None = None) -> None:
        """Count a refusal.  ``text``: the line of the log; without one it is only counted.

        ``fault``: the fault of this program that made it refuse; its traceback is logged too.
        """
        self.counts[reason] += 1
        self.tick(now)
        if text and text not in self._lines and len(self._lines) < _AT_ONCE:
            self._lines.add(text)
            logger.log(logging.ERROR if fault else logging.WARNING, "%s", text, exc_info=fault)
        elif text:
            self._unlogged[reason] += 1

    def tick(self, now: float) -> None:
        """Once a minute, log the number of those that were not logged."""
        if now - self._since < _QUIET_S:
            return
        self._since = now
        self._lines.clear()
        for reason, count in self._unlogged.items():
            logger.warning("%d more were refused (%s)", count, reason)
        self._unlogged.clear()


@dataclass(eq=False)
class RateLimits:
    """All connections of one public socket.

    ``handle`` gets a message with its connection, its further frames, its public key and the time.
    ``who`` names the peer of a connection, ``send`` sends it a message, and ``end`` ends the
    session that it may have.
    """

    most: int  # max_messages_per_s
    refusals: Refusals
    handle: Callable[[bytes, object, Sequence[Frame], str | None, float], None]
    who: Callable[[bytes], str]
    send: Callable[[bytes, object], object]
    end: Callable[[bytes], object]

    def __post_init__(self) -> None:
        self._muted: BoundedMap[bytes, None] = BoundedMap(_REMEMBERED)
        self._bad: BoundedMap[bytes, int] = BoundedMap(_REMEMBERED)
        self._messages: dict[bytes, int] = {}  # of this second, by connection
        self._second_ends = 0.0

    def take(self, connection: bytes, frames: Sequence[Frame], key: str | None, now: float) -> None:
        """Have a message handled; drop it where its connection is mute, or sends too many.

        No message ends the process, nor the feeds of other trainers.
        """
        if connection in self._muted:
            self.refusals.counts["muted"] += 1
            return
        try:
            if not frames or len(frames) > limits.MAX_FRAMES:
                raise ProtocolError(f"a message has {len(frames)} frames")
            message = FROM_TRAINER.decode(frames[0])
            if now >= self._second_ends:
                self._second_ends = now + _SECOND
                self._messages.clear()
            count = self._messages[connection] = self._messages.get(connection, 0) + 1
            if count <= self.most or self.bears(connection, now, 0):
                self.handle(connection, message, frames[1:], key, now)
        except HeadraceError as error:
            self._note_bad(connection, error, now)
        except Exception as fault:
            self.silence("fault", connection, fault_of_message(fault), now, fault)

    def _note_bad(self, connection: bytes, error: HeadraceError, now: float) -> None:
        """Count bytes that are no message, and answer the first ones."""
        count = self._bad[connection] = self._bad.pop(connection, 0) + 1
        said = shown(str(error), 1000)
        text = f"refused a message of {self.who(connection)}: {said}" if count == 1 else ""
        self.refusals.add("garbage", text, now)
        if count == 1:
            self.send(connection, Refused(code_of(error), said))
        if count >= _PATIENCE:
            self._mute(connection)

    def bears(self, connection: bytes, now: float, messages: int) -> bool:
        """Count further messages of a connection; mute it where they are too many in a second."""
        count = self._messages[connection] = self._messages.get(connection, 0) + messages
        if count <= self.most:
            return True
        text = f"a trainer has sent more than max_messages_per_s={self.most} in a second"
        self.silence("messages", connection, LimitExceeded(text), now)
        return False

    def silence(
        self,
        reason: str,
        connection: bytes,
        error: HeadraceError,
        now: float,
        fault: Exception | None = None,
    ) -> None:
        """Mute a connection, after a last message with the reason.

        ``fault``: the exception by which this program failed to handle its message.
        """
        said = shown(str(error), 1000)
        text = f"{self.who(connection)} is not listened to any more: {said}"
        self.refusals.add(reason, text, now, fault)
        self.send(connection, Refused(code_of(error), said))
        self._mute(connection)

    def _mute(self, connection: bytes) -> None:
        self._bad.pop(connection, None)
        self._muted[connection] = None
        self.end(connection)
