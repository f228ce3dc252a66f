"""``headrace top``: a server as it goes on, on a terminal until Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import time
import unicodedata
from argparse import Namespace
from collections.abc import Iterable

from headrace_proto.errors import ConnectionLost, ServerError

from . import exits
from .asking import HTTP, Asker
from .options import Option
from .painting import lines
from .table import Command

__all__ = ["COMMAND", "fitted"]

_ENTER = "\x1b[?1049h\x1b[?25l"  # another screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_OPTIONS = (
    HTTP,
    Option("every", "seconds", "between two looks", default=2.0),
    Option("once", "flag", "print it once, as where there is no terminal", default=False),
)

#: How long a key may be pressed before it is seen.
_LOOK_S = 0.05


def _top(options: Namespace) -> int:
    if options.every < 0.1:
        raise ValueError(f"--every {options.every:g} is less than 0.1 seconds")
    asker = Asker(options)
    if options.once or not sys.stdout.isatty():
        print("\n".join(lines(asker.get("/status.json"))))
        return exits.WELL
    # As an exception it could be raised in a finalizer, where it is lost.
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    sys.stdout.write(_ENTER)
    try:
        while not pressed:
            _paint(asker)
            until = time.monotonic() + options.every
            while not pressed and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_S))
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGINT, before)
    return exits.WELL


def _paint(asker: Asker) -> None:
    try:
        told = lines(asker.get("/status.json"), color=True)
    except (ConnectionLost, ServerError) as error:
        told = [str(error)]  # it may come back
    size = shutil.get_terminal_size()
    rows = fitted(told, size.columns)[: size.lines]
    sys.stdout.write(_HOME + f"{_TO_LINE_END}\r\n".join(rows) + _TO_LINE_END + _TO_END)
    sys.stdout.flush()


def fitted(told: Iterable[str], width: int) -> list[str]:
    """Lines cut to a width; what colors them takes none."""
    return [_cut(line, width) for line in told]


def _cut(line: str, width: int) -> str:
    out, left, colored, i = [], width, False, 0
    while i < len(line):
        if line[i] == "\x1b":
            end = line.index("m", i) + 1
            out.append(line[i:end])
            colored, i = True, end
            continue
        cells = 2 if unicodedata.east_asian_width(line[i]) in "WF" else 1
        if cells > left:
            break
        out.append(line[i])
        left, i = left - cells, i + 1
    return "".join(out) + ("\x1b[0m" if colored else "")


COMMAND = Command(
    "Show what a server does and what holds it up, again and again, until Ctrl-C.",
    _OPTIONS,
    _top,
)
