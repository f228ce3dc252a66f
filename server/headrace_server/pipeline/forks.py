"""A fork in user code: the child ends where the step that called that code would end.

    worker ── user function ──┬── returns ─► the worker goes on
                              └── os.fork() in it: the child
                                     ends by os._exit, exec, multiprocessing      its own affair
                                     returns or raises                            ended here, later

A child that came back would be a second worker: it has the first one's sockets, its slab and its
place in the stream.  The number of the process is compared, since not every fork is Python's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import NoReturn

#: Exit code of a child that is ended, so that the code that forked it sees a failure.
_ENDED = 1


class OwnProcess:
    """A context that a forked child does not leave, for user code that is called inside of it."""

    _pid = 0

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, *error: object) -> None:
        if os.getpid() != self._pid:
            _end()


def let_go_in_children(filenos: Callable[[], Iterable[int]]) -> None:
    """Put /dev/null in the place of these files in each child that Python forks from now on.

    A child that lives on then neither writes to a socket of this process nor keeps it open.
    """

    def let_go() -> None:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for fd in list(filenos()):
            os.dup2(nothing, fd, inheritable=False)
        os.close(nothing)

    os.register_at_fork(after_in_child=let_go)


def _end() -> NoReturn:
    """End the child.  No exit handler runs, and no buffer is written: both are the parent's."""
    text = (
        f"headrace: process {os.getpid()} was forked in user code and returned from there; it is "
        "ended, for only the process that forked it goes on.  Code that forks must end its child, "
        "by os._exit or as a multiprocessing.Process\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(_ENDED)
