"""The peers do the same work: right segments, the states of the step before, and a clean end."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from tests.bench import states
from tests.bench.steps import LOADED, READY

from .w4 import small


@pytest.mark.parametrize("peer", ["barrier", "barrier of one state", "windows"])
def test_a_peer_yields_right_batches_and_leaves_no_thread(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("tensorflow")
    from tests.bench.state_peers import barrier, windows

    contestant = {
        "barrier": barrier(),
        "barrier of one state": barrier(("b",)),
        "windows": windows,
    }[peer]
    checked = []
    check = states.Check.__call__

    def counted(self, *arguments):
        check(self, *arguments)
        checked.append(sorted(arguments[-1]))

    monkeypatch.setattr(states.Check, "__call__", counted)
    before = set(threading.enumerate())
    steps = contestant(small(tmp_path, monkeypatch))
    told = list(itertools.islice(steps, states.CHECKED + 12))
    steps.close()
    assert told == [LOADED, READY, *[1] * (states.CHECKED + 10)]
    assert checked == [["b"] if "one" in peer else ["a", "b"]] * states.CHECKED
    assert set(threading.enumerate()) <= before
