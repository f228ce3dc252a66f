"""A fork in user code: the child ends where that code would return to headrace.

    worker ── user function ──┬── returns ─► the worker goes on
                              └── os.fork() in it: the child
                                     ends by os._exit, exec, multiprocessing      its own affair
                                     returns or raises                            ended here

A child that came back would be a second worker: it has the first one's sockets, its slab and its
place in the stream.  The number of the process is compared, since not every fork is Python's.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")
#: Exit code of a child that is ended, so that the code that forked it sees a failure.
_ENDED = 1


def own(function: Callable[..., _T]) -> Callable[..., _T]:
    """Return the function; a child that it forks does not return from it."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> _T:
        pid = os.getpid()
        try:
            return function(*args, **kwargs)
        finally:
            if os.getpid() != pid:
                _end(getattr(function, "__qualname__", repr(function)))

    return called


def own_iterator(iterable: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of user code; a child that it forks does not return here."""
    return map(own(next), repeat(own(iter)(iterable)))


class OwnProcess:
    """A context that a forked child does not leave, for user code that is called inside of it."""

    _pid = 0

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, *error: object) -> None:
        if os.getpid() != self._pid:
            _end("user code")


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


def _end(where: str) -> NoReturn:
    """End the child.  No exit handler runs, and no buffer is written: both are the parent's."""
    text = (
        f"headrace: process {os.getpid()} was forked in {where:.200} and returned from there; it "
        "is ended, for only the process that forked it goes on.  Code that forks must end its "
        "child, by os._exit or as a multiprocessing.Process\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))
    os._exit(_ENDED)
