"""Progress of long work: a line on standard error every few seconds.

    converting   41%  412,000 of 1,000,000 rows, 98,000/s

Work that ends before the first line is due prints none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile

_EVERY_S: Final = 5.0
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


def counted(number: int, noun: str) -> str:
    """Return a number of things as text: ``1 file``, ``2 files``."""
    return f"{count(number)} {noun}{'s' * (number != 1)}"


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


@dataclass(eq=False)
class Progress:
    """Progress of one work; ``unit`` "bytes" is shown in KiB, MiB and so on."""

    _what: str
    _total: int | None  # None: not known
    _unit: str = "rows"
    _clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._began = self._shown_at = self._clock()

    def to(self, done: int) -> None:
        """Note how much is done now."""
        now = self._clock()
        if now - self._shown_at >= _EVERY_S:
            self._shown_at = now
            print(self._text(done, now), file=sys.stderr, flush=True)

    def _text(self, done: int, now: float) -> str:
        text, share = self._amount(done), ""
        if self._total:
            share = f"{min(1.0, done / self._total):4.0%}  "
            text += f" of {self._amount(self._total)}"
        if self._unit != "bytes":
            text += f" {self._unit}"
        pace = done / max(now - self._began, 1e-9)
        if pace > 0:
            text += f", {self._amount(pace)}/s"
        return f"{self._what}  {share}{text}"

    def _amount(self, number: float) -> str:
        return size(number) if self._unit == "bytes" else count(number)


def reporting_cache(files: Sequence[DataFile], directory: str | None = None) -> IndexCache:
    """Return a cache, by default in memory, that shows how many bytes were indexed."""
    progress = Progress("indexing", sum(file.size for file in files), "bytes")
    done: dict[str, int] = {}

    def note(file: DataFile, upto: int) -> None:
        done[file.path] = upto
        progress.to(sum(done.values()))

    return IndexCache(directory, note)
