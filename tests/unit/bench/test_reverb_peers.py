"""Reverb carries states as the others do, where it is installed; segments are cut right anyway."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.bench import reverb_peers, states
from tests.bench.steps import LOADED, READY

from .w4 import small


def test_examples_are_cut_to_their_end_with_the_states_of_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    examples = reverb_peers.WrittenExamples(small(tmp_path, monkeypatch))
    rows = [examples.begun() for _ in range(states.BATCH)]
    check = states.Check()
    for _ in range(25):  # the longest has twenty segments: every row goes on to another example
        batch = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        carried = {name: batch[name] for name in states.STATES}
        check(
            batch["key"], batch["sequence"], batch["length"], batch["context"], batch["x"], carried
        )
        rows = [
            examples.next(
                row["key"],
                int(row["sequence"]),
                {name: row[name] + by for name, by in states.STATES.items()},
            )
            for row in rows
        ]


def test_its_batches_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("reverb")
    monkeypatch.setattr(states, "CAPACITY", 320)
    steps = reverb_peers.segments(small(tmp_path, monkeypatch))
    assert list(itertools.islice(steps, 42)) == [LOADED, READY, *[1] * 40]
    steps.close()
