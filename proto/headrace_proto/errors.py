"""All errors that headrace raises on purpose.

The type says whose fault it was; the text says what was wrong, the value, the limit and the
remedy.  Errors cross the wire as a code (the table at the end) and a text, never as objects.

    HeadraceError
    ├── DataError            the data broke a rule: file, record, column, value and rule are named
    │   └── FilesMissing     a pattern matches nothing, or a file went away or can not be opened
    ├── ProtocolError        the peer broke the protocol
    │   └── VersionMismatch  the two ends speak different versions
    ├── ConnectionLost       the server could not be reached, or went away
    ├── DeadlineExceeded     a wait ran past its deadline; the text says what was waited for
    ├── NotAllowed           keys: the server does not let this trainer in, or is not the right one
    ├── UnknownFeed          no feed of that name is served here
    ├── FeedInUse            other trainers, or another run of ranks, use the feed
    ├── LimitExceeded        a limit of the server was reached; the text names it
    ├── ServerError          the server, or user code in it, failed
    ├── FeedRewound          the feed went back to an earlier state; connect anew
    ├── StaleLease           the lease had ended meanwhile; this work does not count
    ├── StateError           a state was saved twice, or at the wrong time
    ├── Cancelled            the feed was cancelled
    ├── FeedClosed           the feed object was closed and is used again
    └── ForkedProcess        a connection was used in a forked child
"""

from __future__ import annotations

from collections import abc
from contextlib import contextmanager


class HeadraceError(Exception):
    """Base of all errors that headrace raises on purpose."""


class DataError(HeadraceError, ValueError):
    """The data broke a rule.  Names file, record, column, value and rule where they are known."""


class FilesMissing(DataError, FileNotFoundError):
    """A pattern matches no file; or a file vanished, was replaced, or can not be opened."""


class ProtocolError(HeadraceError):
    """The peer sent something that the protocol does not allow."""


class VersionMismatch(ProtocolError):
    """The two ends speak different versions of the protocol.  Both are named."""


class ConnectionLost(HeadraceError, ConnectionError):
    """The server could not be reached, or went away during a wait."""


class DeadlineExceeded(HeadraceError, TimeoutError):
    """A wait ran past its deadline. The text names the missing batch, answer or member."""


class NotAllowed(HeadraceError, PermissionError):
    """The keys of trainer and server do not fit. The text names them and the remedy."""


class UnknownFeed(HeadraceError, LookupError):
    """The server has no feed of that name.  The text lists the feeds that it has."""


class LimitExceeded(HeadraceError):
    """A limit was reached, of the server or of this process.  The text names it and the remedy."""


class ServerError(HeadraceError, RuntimeError):
    """The server, or user code that runs in it, failed.  The text carries its last words."""


class FeedInUse(HeadraceError, RuntimeError):
    """Other trainers use the feed: it can not be restarted, and no other run of ranks begins."""


class FeedRewound(HeadraceError):
    """The feed went back to an earlier state, or a rank lost a batch: its later work is undone."""


class StaleLease(HeadraceError):
    """A commit came after its lease had ended: it does not count, and the rows go out again."""


class StateError(HeadraceError):
    """A state was saved twice for one batch, or when it can not be saved."""


class Cancelled(HeadraceError):
    """The feed was drained with ``cancel=True``."""


class FeedClosed(HeadraceError, RuntimeError):
    """The feed object was closed before this call."""


class ForkedProcess(HeadraceError, RuntimeError):
    """A connection made before ``fork`` was used in the child."""


_CODES: dict[str, type[HeadraceError]] = {
    "data": DataError,
    "files": FilesMissing,
    "protocol": ProtocolError,
    "version": VersionMismatch,
    "lost": ConnectionLost,
    "deadline": DeadlineExceeded,
    "denied": NotAllowed,
    "feed": UnknownFeed,
    "limit": LimitExceeded,
    "server": ServerError,
    "in_use": FeedInUse,
    "rewound": FeedRewound,
    "stale": StaleLease,
    "state": StateError,
    "cancelled": Cancelled,
}
_BY_TYPE = {kind: code for code, kind in _CODES.items()}


def code_of(error: BaseException) -> str:
    """Return the wire code of an error's nearest listed ancestor; ``server`` for unknown types."""
    for kind in type(error).__mro__:
        if kind in _BY_TYPE:
            return _BY_TYPE[kind]
    return "server"


def from_code(code: str, text: str) -> HeadraceError:
    """Return the error of a code and a text; a code of a later version becomes a ServerError."""
    return _CODES.get(code, ServerError)(shown(text))


def is_mistake(error: BaseException) -> bool:
    """Return whether the caller asked for what can not be, and nothing failed: exit code 2."""
    return isinstance(error, UnknownFeed) or not isinstance(error, HeadraceError)


@contextmanager
def rewording(
    kind: abc.Callable[[str], Exception],
    before: str,
    *caught: type[Exception],
    but: tuple[type[Exception], ...] = (),
) -> abc.Iterator[None]:
    """Raise errors of the caught types as one of another, whose text begins with ``before``.

    Errors of the types ``but`` stay as they are.
    """
    try:
        yield
    except but:
        raise
    except caught as error:
        raise kind(f"{before}{error}") from None


def kind_of(value: object) -> str:
    """Return the name of a value's type with its article, for the text of an error."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' or name.startswith('nd') else 'a'} {name}"


def brief(value: object, most: int = 60) -> str:
    """Return the beginning of a value's repr on one line; that of an array has several."""
    return " ".join(line.strip() for line in repr(value)[:most].splitlines())


def listed(names: abc.Collection[str], most: int = 20) -> str:
    """Return the names, or the first of them, as an error lists them."""
    first = ", ".join(map(repr, [*names][:most]))
    return f"{first}, …" if len(names) > most else first


def one_line(text: str, most: int = 1000) -> str:
    """Return a text of a peer, of data or of user code for people: on one line, escaped and cut.

    No terminal obeys it, and it can not pose as another line of a log.
    """
    if not text.isprintable():
        cut = text[:most]
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shown(text: str, most: int = 20_000) -> str:
    """Return such a text with its lines; each after the first one begins with a space."""
    first, *more = text[:most].split("\n")
    lines = [line if line.startswith(" ") else f"  {line}" for line in more]
    return "\n".join(one_line(line, most) for line in [first, *lines])


def near(word: object, known: abc.Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word that is most like this one, or nothing."""
    import difflib  # only errors need it

    lower = {one.lower(): one for one in known}
    for like in difflib.get_close_matches(str(word).lower(), lower, 1):
        return f"; did you mean {lower[like]!r}?"
    return ""
