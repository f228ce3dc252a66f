"""Every trial at a small part of its size.

The full sizes are ``make fuzz``, ``make soak``, ``make scale`` and ``make trials``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.trials.every import EVERY
from tests.trials.frame import Result, Setup, run, table

#: Trials whose short form takes longer than some seconds.
LONG = ("owners", "lanes")


def short(name: str, scratch: Path) -> Result:
    trial = EVERY[name]
    result = run(name, trial.goal, trial.run, Setup(1, trial.short, scratch))
    print(table([result]))
    return result


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name in LONG))
        for name, trial in EVERY.items()
        if not trial.root
    ],
)
def test_a_trial_in_short_sees_nothing_that_must_not_be(name, tmp_path):
    result = short(name, tmp_path)
    assert result.verdict in ("held", "missed"), result.notes
    assert sum(result.counts.values()) > 0


@pytest.mark.needs_root
@pytest.mark.parametrize("name", [name for name, trial in EVERY.items() if trial.root])
def test_a_trial_that_needs_root_in_short_sees_nothing_that_must_not_be(name):
    """Files lie on the disk, since a host of the trials has shared memory of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        result = short(name, Path(scratch))
    if result.verdict == "not run":
        pytest.skip("; ".join(result.notes))
    assert result.verdict in ("held", "missed"), result.notes
