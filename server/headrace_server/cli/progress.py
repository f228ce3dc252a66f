"""Progress of long work: a bar on a terminal, elsewhere a line every few seconds.

    converting  [#########.............]  41 %  412,000 of 1,000,000 rows, 98,000/s, 6 s left

It goes to standard error, so the output of a command stays whole.  Work that ends before the first
line is due prints none.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile

_BAR: Final = 24
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(nbytes: float) -> str:
    """Return a number of bytes as text: ``1.5 GiB``."""
    for unit in _UNITS:
        if nbytes < 1024 or unit == _UNITS[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "bytes" or nbytes >= 100 else f"{nbytes:.1f} {unit}"


def count(number: float) -> str:
    """Return a number as text: ``1,234,567``."""
    return f"{number:,.0f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return columns side by side; one whose head begins with "<" is set to the left."""
    names = [head.removeprefix("<") for head in heads]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if head.startswith("<") else f"{cell:>{width}}"
            for head, cell, width in zip(heads, row, widths, strict=True)
        ).rstrip()
        for row in [names, *rows]
    ]


class Progress:
    """Progress of one work.  A context manager: at its end a bar goes away."""

    def __init__(
        self,
        what: str,
        total: int | None,
        unit: str = "rows",
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        line_every_s: float = 5.0,
    ) -> None:
        """``total`` None: not known.  ``unit`` "bytes" is shown in KiB, MiB and so on."""
        self._what, self._total, self._unit = what, total, unit
        self._out = out if out is not None else sys.stderr
        self._bar = self._out.isatty()
        self._clock = clock
        self._every_s = 0.1 if self._bar else line_every_s
        self._began = self._shown_at = clock()
        self._first = 0
        self._done = 0
        self._shown = False

    def start(self, done: int) -> None:
        """Note how much was done before: it counts for the share, and not for the pace."""
        self._first = self._done = done

    def to(self, done: int) -> None:
        """Note how much is done now."""
        self._done = done
        now = self._clock()
        if now - self._shown_at < self._every_s:
            return
        self._shown_at = now
        if self._bar:
            width = shutil.get_terminal_size().columns - 1
            self._out.write("\r" + self.text(now)[:width].ljust(width))
            self._shown = True
        else:
            self._out.write(self.text(now) + "\n")
        self._out.flush()

    def text(self, now: float) -> str:
        """Return the line for a time."""
        text = self._amount(self._done)
        share = ""
        if self._total:
            part = min(1.0, self._done / self._total)
            marks = round(part * _BAR)
            bar = f"[{'#' * marks}{'.' * (_BAR - marks)}]  " if self._bar else ""
            share = f"{bar}{part:4.0%}  "
            text += f" of {self._amount(self._total)}"
        if self._unit != "bytes":
            text += f" {self._unit}"
        pace = (self._done - self._first) / max(now - self._began, 1e-9)
        if pace > 0:
            text += f", {self._amount(pace)}/s"
            if self._total and self._total > self._done:
                text += f", {_duration((self._total - self._done) / pace)} left"
        return f"{self._what}  {share}{text}"

    def _amount(self, number: float) -> str:
        return size(number) if self._unit == "bytes" else count(number)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            width = shutil.get_terminal_size().columns - 1
            self._out.write("\r" + " " * width + "\r")
            self._out.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def reporting_cache(files: Sequence[DataFile]) -> Iterator[IndexCache]:
    """Give a cache in memory that shows, while the block lasts, how many bytes were indexed."""
    with Progress("indexing", sum(file.size for file in files), "bytes") as progress:
        done: dict[str, int] = {}

        def note(file: DataFile, upto: int) -> None:
            done[file.path] = upto
            progress.to(sum(done.values()))

        yield IndexCache(None, note)
