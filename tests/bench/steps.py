"""A contestant: a generator that starts its server, then takes batch after batch.

    LOADED   its framework is imported          READY   its server serves
    1        per batch taken                    ENDED   after the last one, its server still runs
    2, 3 …   the same, where several trainers take: the number of the one that took it

A float in place of a 1 is a time in seconds: the latency that the contestant measured itself,
where the time between two batches is not what it is about.  ``Filled`` stands for a batch of which
a share is not padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

LOADED, READY, ENDED = "loaded", "ready", "ended"


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch taken, and the share of its steps that are not padding."""

    share: float


Steps = Iterator[str | int | float | Filled]
Contestant = Callable[[Path], Steps]
#: Compares a first batch with the files of a directory.
Check = Callable[[Any, Path], None]


def blind() -> None:
    """This process does not see the server's memory, as on another host."""
    memory = import_module("headrace.connection.batch_memory")

    def unseen(attachment: object, directory: str, session_file: str) -> None:
        raise FileNotFoundError(session_file)

    memory.Attachment.__init__ = unseen
