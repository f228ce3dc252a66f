"""Trainers' observations as lines that survive them: one ``write`` each to a file opened to append.

[time, who, what, token, …]
    take   cells, states before       a batch is in the trainer's hands
    send   states after               it is done; the commit is on its way from here on
    ok | stale | fault                the server's answer to it, each time one comes
    lost                              the client knew that the lease was gone and sent nothing
    flush  rows                       states of lanes were handed over, and that was answered
    unmade asked, text                a snapshot, asked for at this time, was refused
    gap    seconds                    this process was not run for so long
    join | end | error
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "Line", "chained", "read_lines"]


@dataclass(frozen=True, slots=True)
class Line:
    at: float
    who: str
    what: str
    token: int
    more: tuple[Any, ...]


class Ledger:
    """The end of one writer."""

    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._who = self._name = who
        self._joins = 0

    def join_again(self) -> None:
        """Write as another trainer from now on: this one has left, and joins once more."""
        self._joins += 1
        self._who = f"{self._name}+{self._joins}"

    def note(self, what: str, token: int = 0, *more: Any) -> None:
        line = json.dumps([time.monotonic(), self._who, what, token, *more])
        os.write(self._file, line.encode() + b"\n")


def read_lines(path: Path) -> list[Line]:
    """Return all lines in the order in which they were written."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]  # the last line may be under way
    told = [json.loads(line) for line in whole.splitlines()]
    return [Line(at, who, what, token, tuple(more)) for at, who, what, token, *more in told]


def chained(state: Sequence[int], cell: Sequence[Any], token: int) -> list[int]:
    """Return the state after a segment, which differs after each commit, also of one segment."""
    text = json.dumps([list(state), list(cell), token]).encode()
    digest = blake2b(text, digest_size=16).digest()
    return [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in (0, 8)]
