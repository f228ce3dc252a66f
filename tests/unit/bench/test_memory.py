"""Memory is looked at all the time, so a peak between two windows is seen."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

from tests.bench import memory
from tests.bench.memory import judged
from tests.bench.processes import Usage, mapped_mb, usage
from tests.bench.steps import LOADED, READY


def test_a_passed_peak_of_memory_is_reported_and_does_not_count_as_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks = []

    def looked() -> Usage:
        looks.append(usage())
        return looks[-1]

    def contestant(directory: Path) -> Any:
        """Has much until it was seen, and then no more."""
        yield LOADED
        yield READY
        passing, seen = np.ones(100 * 2**20, np.uint8), len(looks) + 2
        while True:
            if len(looks) >= seen:
                passing = np.ones(1)
            yield 1 + 0 * len(passing)
            sleep(0.005)  # what a batch takes

    monkeypatch.setattr(memory, "usage", looked)
    monkeypatch.setitem(memory.CONTESTANTS, "passing", contestant)
    measured = memory.measured_usage("passing", tmp_path, 2.4)
    assert measured["peak_mb"] >= 90
    assert measured["last_mb"] < 60
    assert measured["epochs"] > 0


def test_a_peak_and_a_growth_are_targets_of_their_own():
    assert [one.met for one in judged("W1 memory: a", "a", measured(199, 100, 104))] == [True, True]
    assert [one.met for one in judged("W1 memory: a", "a", measured(201, 100, 106))] == [
        False,
        False,
    ]


def measured(peak: float, first: float, last: float) -> dict[str, float]:
    return {"peak_mb": peak, "first_mb": first, "last_mb": last}


def test_pages_of_mapped_files_are_counted_by_their_directory(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.zeros(8 * 2**20, np.uint8))
    held = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert held.sum() == 0
    assert mapped_mb(tmp_path) == pytest.approx(8, abs=0.1)
    assert mapped_mb(tmp_path / "other") == 0
