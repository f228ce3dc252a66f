"""Every form of the trainer's loop gets right batches, with the states that it saved."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.bench import states
from tests.bench.state_trainers import trainer
from tests.bench.steps import LOADED, READY

from .w4 import small

_FORMS = {
    "arrival": trainer(False, "numpy"),
    "two in flight": trainer(False, "numpy", prefetch=1),
    "three in flight": trainer(False, "numpy", prefetch=1, ahead=True),
    "lanes": trainer(True, "numpy"),
    "durable": trainer(False, "numpy", prefetch=1, durability="power"),
}


@pytest.mark.parametrize("form", _FORMS)
def test_all_that_is_checked_is_right(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checked = _counted(monkeypatch)
    steps = _FORMS[form](small(tmp_path, monkeypatch))
    assert list(itertools.islice(steps, states.CHECKED + 7)) == [
        LOADED,
        READY,
        *[1] * (states.CHECKED + 5),
    ]
    steps.close()
    assert len(checked) == states.CHECKED


@pytest.mark.parametrize("lanes", [False, True])
def test_from_a_save_to_what_it_makes_ready_is_a_time_in_seconds(
    lanes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checked = _counted(monkeypatch)
    steps = trainer(lanes, "numpy", to_ready=True)(small(tmp_path, monkeypatch))
    told = list(itertools.islice(steps, 22))[2:]
    steps.close()
    assert all(isinstance(time, float) and 0 < time < 60 for time in told)
    assert len(checked) == 20
    # With one batch in flight what comes next is what was saved: only ended examples make room.
    for before, after in itertools.pairwise(checked):
        assert {key for key, goes_on in before.items() if goes_on} <= after.keys()


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[dict[bytes, bool]]:
    """For each batch that is checked: which examples it holds, and whether they go on."""
    told: list[dict[bytes, bool]] = []
    check = states.Check.__call__

    def counted(self, keys, sequence, length, context, x, carried):
        check(self, keys, sequence, length, context, x, carried)
        ends = (sequence + 1) * states.UNROLL >= context
        told.append({bytes(k): not end for k, end in zip(keys, ends.tolist(), strict=True)})

    monkeypatch.setattr(states.Check, "__call__", counted)
    return told
