"""Measurements of headrace by itself: their modules, and their targets.

A module runs as ``python -m tests.bench.MODULE NAME DIRECTORY``, and ``judged`` and ``shown`` of
it say what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import memory, packed, restarting
from .pairs import Judged

__all__ = ["ALONE", "Alone", "alone"]

_MODULES = {"memory": memory, "packed": packed, "restarting": restarting}


@dataclass(frozen=True, slots=True)
class Alone:
    """One measurement."""

    workload: str
    name: str
    module: str
    seconds: float

    @property
    def title(self) -> str:
        return f"{self.workload}: {self.name}"

    def judged(self, measured: Mapping[str, Any]) -> list[Judged]:
        """Every target of it."""
        return _MODULES[self.module].judged(self.title, self.name, measured)

    def shown(self, measured: Mapping[str, Any]) -> str:
        """The figures in words."""
        return _MODULES[self.module].shown(measured)


ALONE = [
    Alone("restart", "headrace restart", "restarting", 20.0),
    Alone("packed lanes", "headrace lanes", "packed", 10.0),
    Alone("W1 memory", "headrace shm tf", "memory", 12.0),
]


def alone(only: str) -> list[Alone]:
    """Those whose title contains this."""
    return [one for one in ALONE if only in one.title]
