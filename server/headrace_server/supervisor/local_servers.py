"""The servers that live in this process, and the addresses and directories that each has alone.

    hs.run ─► refuse_taken ─► start ─► LocalServer ──┬── close() ─────────────────► left
                                                └── its Server is garbage ─► a thread ends it

A cell of a notebook that is run again starts a server while the one before still lives.  The system
would only report that the address is in use; this process knows by which server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable

from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError

logger = logging.getLogger("headrace.server")

_PACKAGE = __name__.partition(".")[0]
#: Maximum wait for a server that is being ended to free its address.
_END_S = 10.0
_ANY_HOST = frozenset({"*", "0.0.0.0", "[::]"})
_PLACE = re.compile(r"(?:tcp://|http://)?(?P<host>.+):(?P<port>[0-9]+)/?")

_lock = threading.RLock()  # a collection of garbage can come while it is held
_every: list[LocalServer] = []


class LocalServer:
    """One server of this process, until ``left``; its garbage-collected object ends it."""

    def __init__(
        self,
        server: object,
        takes: Iterable[str],
        end: Callable[[], None],
        failed: Callable[[], bool],
    ) -> None:
        """``end`` and ``failed`` must not hold the object."""
        self.failed = failed
        self.where = _caller()
        self.takes = tuple(takes)
        self.ending: threading.Thread | None = None
        self.pid = os.getpid()
        self._finalizer = weakref.finalize(server, self._collected, end)
        self._finalizer.atexit = False  # then its processes are killed, which takes no time
        with _lock:
            _every.append(self)

    def left(self) -> None:
        """Forget the server: it has ended."""
        self._finalizer.detach()
        with _lock, contextlib.suppress(ValueError):
            _every.remove(self)

    def _collected(self, end: Callable[[], None]) -> None:
        """End the server in a thread: a collection can come while this thread holds its lock."""
        if os.getpid() != self.pid:
            return

        def stop() -> None:
            try:
                end()
            finally:
                self.left()

        logger.warning(
            "the server at %s, started at %s, is stopped: nothing refers to it any more.  Keep "
            "what hs.run returns, or close() it",
            self.takes[0],
            self.where,
        )
        self.ending = threading.Thread(target=stop, name="headrace-end")
        self.ending.start()


def refuse_taken(takes: Iterable[tuple[str, str]]) -> None:
    """ServerError where a server of this process has one of these, given as (argument, value).

    Those that are being ended are waited for.
    """
    with _lock:
        ending = [one.ending for one in _every if one.ending is not None]
    deadline = Deadline(_END_S)
    for thread in ending:
        deadline.join(thread)
    with _lock:
        living = [one for one in _every if one.pid == os.getpid()]
    for argument, value in takes:
        for one in living:
            if argument == "bind" and one.failed():
                continue  # its front may have ended, and so freed the address
            if any(_same(value, taken) for taken in one.takes):
                raise ServerError(
                    f"{argument}={value!r} is used by the server that this process started at "
                    f"{one.where}, which serves at {one.takes[0]}: close() that server first, or "
                    "start each in a with block"
                )


def _same(value: str, taken: str) -> bool:
    """Return whether two addresses or paths can not be had at once.  A free port is never taken."""
    one, other = _PLACE.fullmatch(value), _PLACE.fullmatch(taken)
    if one is None or other is None:
        return value == taken
    hosts = {one["host"], other["host"]}
    return one["port"] == other["port"] != "0" and (len(hosts) == 1 or bool(hosts & _ANY_HOST))


def _caller() -> str:
    """FILE:LINE of the code outside of this package that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
