"""The file descriptors of a process whose public port strangers can connect to, divided by number.

    0 … line - 1        open at the start, and connections: ZeroMQ accepts up to here
    line … limit - 1    files and channels that this process itself opens later

The kernel gives the lowest free number below the soft RLIMIT_NOFILE.  That limit stands at the
line, so connections can never use up the other part: at the line ``accept`` of libzmq 4.3.5 fails,
and connections wait in the kernel's queue until one ends.  ``own`` raises the limit for the moment
in which this process opens something; ``aside`` moves a file that stays open beyond the line.

A process that never calls ``divide`` has one undivided range: ``own`` and ``aside`` do nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from headrace_proto.errors import LimitExceeded

#: Maximum connections at once without a Hello, where the limit allows that …
_STRANGERS = 1024
#: … and their part of a smaller limit.
_STRANGERS_SHARE = 4
#: Numbers below the line for what ZeroMQ and Python open before the first connection.
_SPARE = 16
#: Numbers beyond the line for files that are open only for a moment.
_TRANSIENT = 32

_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def is_shortage(error: OSError) -> bool:
    """Return whether the same call may succeed later: descriptors or kernel memory are short."""
    return error.errno in _SHORTAGE


@dataclass(frozen=True, slots=True)
class Division:
    """The number of descriptors for each purpose."""

    limit: int  # of the process
    line: int  # the first number that no connection gets
    sessions: int  # maximum number of trainers' sessions; each has a connection
    # maximum number of connections, including those of sessions; then one ends for each new one
    connections: int


def plan(hard: int, used: int, others: int, sessions: int) -> Division:
    """Divide a hard limit.  ``used``: open already; ``others``: own ones that are no connection's.

    LimitExceeded: not even one session fits.
    """
    fixed = used + _SPARE + others + _TRANSIENT
    strangers = min(_STRANGERS, hard // _STRANGERS_SHARE)
    fit = min(sessions, hard - fixed - strangers)
    if fit < 1:
        least = -(-(fixed + 1) * _STRANGERS_SHARE // (_STRANGERS_SHARE - 1))
        raise LimitExceeded(
            f"the limit of open files is {hard} (RLIMIT_NOFILE), and the locator needs at least "
            f"{least}: raise it (ulimit -n; systemd: LimitNOFILE=; containers: ulimits: nofile)"
        )
    line = used + _SPARE + fit + strangers
    most = fit + strangers - strangers // _STRANGERS_SHARE  # some may come before others have ended
    return Division(fixed + strangers + fit, line, fit, most)


class _Limit:
    """The soft limit of this process, of which there is one: so this is an object of the module."""

    def __init__(self) -> None:
        self.division: Division | None = None
        self.undivided = 0  # the soft limit before the division
        self.depth = 0

    def set(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self.hard))

    @property
    def hard(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


_LIMIT = _Limit()


def divide(others: int, sessions: int) -> Division:
    """Divide this process's descriptors from now on; call it before the public port is bound."""
    hard = _LIMIT.hard
    used = len(os.listdir("/proc/self/fd"))
    division = plan(hard if hard != resource.RLIM_INFINITY else 1 << 20, used, others, sessions)
    if _LIMIT.division is None:
        _LIMIT.undivided = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    _LIMIT.division = division
    _LIMIT.set(division.line)
    return division


def undivide() -> None:
    """End the division: restore the soft limit."""
    if _LIMIT.division is not None:
        _LIMIT.division = None
        _LIMIT.set(_LIMIT.undivided)


@contextlib.contextmanager
def own() -> Iterator[None]:
    """Open a file within this block whatever the number of connections.

    For one thread, and for the one call that opens: meanwhile connections may pass the line.
    """
    division = _LIMIT.division
    if division is None or _LIMIT.depth:
        yield
        return
    _LIMIT.depth = 1
    _LIMIT.set(division.limit)
    try:
        yield
    finally:
        _LIMIT.depth = 0
        _LIMIT.set(division.line)


def aside(number: int) -> int:
    """Move a file beyond the line, where it takes no connection's place; return its number."""
    division = _LIMIT.division
    if division is None or number >= division.line:
        return number
    try:
        with own():
            moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, division.line)
    except OSError:  # no number is free there: the file keeps its own
        return number
    os.close(number)
    return moved
