"""``headrace top``: the status of a server on a terminal, again and again until Ctrl-C.

    a thread asks ─► lines ─► the screen, again at each look and at each change of its size
                         signals are blocked, and looked for 20 times a second

Whenever a signal comes, also while a hung server is asked, the terminal is left as it was.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import threading
import time
import unicodedata
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import NoReturn

from headrace_proto.errors import HeadraceError

from ..process.option import Option
from ..process.statuses import ServerStatus
from .frame import with_options
from .remote import ALL, SERVERS, askers, status_of_all
from .status_lines import lines

_ENTER = "\x1b[?1049h\x1b[?25l"  # another screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"

#: How long a key may be pressed, or a window be drawn larger, before it is seen.
_LOOK_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


@with_options(
    SERVERS,
    ALL,
    Option("every", "seconds", default=2.0, least=0.1),
    Option("once", "flag", default=False),
)
def top(options: Namespace) -> None:
    """Show the state of a server and its bottleneck, updated until Ctrl-C.

    every: between two looks
    once: print it once, as where there is no terminal
    """
    servers = askers(options)
    if len(servers) > 1 and not options.all:
        raise ValueError(f"--http names {len(servers)} servers: give --all to see them as one")

    def status() -> ServerStatus:
        return status_of_all(servers) if options.all else servers[0].status()

    if options.once or not sys.stdout.isatty():
        print("\n".join(lines(status())))
        return
    looks: SimpleQueue[list[str]] = SimpleQueue()
    asking = threading.Thread(target=_look, args=(status, options.every, looks), daemon=True)
    with _blocked_signals(), _other_screen():
        asking.start()
        painted: list[str] = []
        size: os.terminal_size | None = None
        while (
            came := signal.sigtimedwait(_SIGNALS, _LOOK_S)
        ) is None or came.si_signo == signal.SIGTSTP:
            if came is not None:
                _pause()
                size = None
            if not looks.empty():
                painted, size = looks.get(), None
            if size != (size := _size()):
                sys.stdout.write(screen(painted, size))
                sys.stdout.flush()


def _size() -> os.terminal_size:
    """Return the present size of the terminal, which COLUMNS and LINES may not show."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size if size.columns and size.lines else os.terminal_size((80, 24))


def _look(
    status: Callable[[], ServerStatus], every_s: float, looks: SimpleQueue[list[str]]
) -> NoReturn:
    """Put the lines of a status, or of the error in its place, again and again."""
    while True:
        try:
            looks.put(lines(status(), color=True))
        except (HeadraceError, ValueError) as error:
            looks.put(textwrap.wrap(str(error), _size().columns))  # it may come back
        time.sleep(every_s)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Let signals wait for ``sigtimedwait``; an exception could be lost in a finalizer."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _other_screen() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        _leave()


def _leave() -> None:
    sys.stdout.write(_LEAVE)
    sys.stdout.flush()


def _pause() -> None:
    """Ctrl-Z: the shell gets its screen, until it lets us go on."""
    _leave()
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdout.write(_ENTER)


def screen(painted: list[str], size: os.terminal_size) -> str:
    """Return the text that makes a terminal of a size show these lines, and nothing else.

    A line is emptied before it is written: emptying it afterwards would take the last character of
    a line that reaches the edge.
    """
    if len(painted) > size.lines:
        more = len(painted) - size.lines + 1
        painted = [*painted[: size.lines - 1], f"… {more} more lines: a higher window shows them"]
    rows = [f"{_TO_LINE_END}{row}" for row in fitted(painted, size.columns)]
    after = f"\r\n{_TO_END}" if len(rows) < size.lines else ""
    return _HOME + "\r\n".join(rows) + after


def fitted(painted: Iterable[str], width: int) -> list[str]:
    """Cut lines to a width, of which colors take none."""
    return [_cut(line, width) for line in painted]


def _cut(line: str, width: int) -> str:
    out, left = "", width
    for part in re.findall(r"\x1b[^m]*m|.", line):
        if not part.startswith("\x1b"):
            left -= 2 if unicodedata.east_asian_width(part) in "WF" else 1
        if left < 0:
            break
        out += part
    return f"{out}\x1b[0m" if "\x1b" in out else out
