"""Which run of the ranks this process belongs to, as its launcher names it."""

from __future__ import annotations


def launched_run() -> int:
    return 0


def born() -> int:
    return 0
