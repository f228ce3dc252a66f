"""Every trial at a small part of its size.

The full sizes are ``make fuzz``, ``make soak``, ``make scale`` and ``make trials``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.trials.every import EVERY
from tests.trials.frame import Result, Setup, run, table

#: Trials by the part of their full size that takes some seconds.
SHORT = {
    "faults": 0.1,
    "live": 0.01,
    "connections": 0.0003,
    "soak": 0.01,
    "hostile": 0.05,
    "messages": 0.01,
    "workers": 0.1,
    "sequences": 0.1,
}
#: The same, of those that take longer.
LONG = {"owners": 0.1, "lanes": 0.1}
#: The same, of those that mount file systems or make groups of processes.
OF_ROOT = {"power": 0.01, "endless": 0.2, "shares": 0.01, "servers": 0.1}


def short(name: str, scale: float, scratch: Path) -> Result:
    trial = EVERY[name]
    result = run(name, trial.goal, trial.run, Setup(1, scale, scratch))
    print(table([result]))
    return result


@pytest.mark.parametrize(
    "name", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_a_trial_in_short_sees_nothing_that_must_not_be(name, tmp_path):
    result = short(name, {**SHORT, **LONG}[name], tmp_path)
    assert result.verdict in ("held", "missed"), result.notes
    assert sum(result.counts.values()) > 0


@pytest.mark.needs_root
@pytest.mark.parametrize("name", OF_ROOT)
def test_a_trial_that_needs_root_in_short_sees_nothing_that_must_not_be(name):
    """Files lie on the disk, since a host of the trials has shared memory of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        result = short(name, OF_ROOT[name], Path(scratch))
    if result.verdict == "not run":
        pytest.skip("; ".join(result.notes))
    assert result.verdict in ("held", "missed"), result.notes


def test_every_trial_has_a_short_form():
    assert EVERY.keys() == SHORT.keys() | LONG.keys() | OF_ROOT.keys()
