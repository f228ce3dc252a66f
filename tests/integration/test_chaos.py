"""Whole servers and trainers under random faults.

All processes and kills here are real.  The long form is ``make chaos-long``.
"""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headrace
import headrace_server as hs
from tests.chaos.driver import Setup, run
from tests.chaos.faults import FAULTS, LASTING
from tests.chaos.feeds import MODES
from tests.chaos.results import report


def survive(setup: Setup, tmp_path: Path) -> None:
    outcome = run(setup, tmp_path)
    assert not outcome.verdict.findings, report(outcome)
    assert outcome.faults.total() and outcome.verdict.counts["cells"] > 100


def _tools(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.tools)


@pytest.mark.parametrize(
    ("mode", "workers", "durability"),
    [
        ("segments", 1, "power"),
        ("kept", 2, "power"),
        _tools("plain", 2, "power"),
        _tools("plain", 3, "off"),
        _tools("buckets", 2, "power"),
        _tools("sampled", 2, "power"),
        _tools("lanes", 3, "process"),
        _tools("segments", 3, "off"),
    ],
)
def test_nothing_is_lost_and_nothing_twice_under_random_faults(mode, workers, durability, tmp_path):
    kinds = LASTING if durability == "off" else tuple(FAULTS)
    seed = f"{mode} {workers} {durability}"
    setup = Setup(mode, seed, kinds, 2.0, 0.3, 500, workers=workers, durability=durability)
    survive(setup, tmp_path)


@pytest.mark.tools
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_lost_and_nothing_twice_whatever_trainers_do(mode, tmp_path):
    """They are interrupted, fail amid their loops, leave, and ask for snapshots."""
    kinds = ("worker killed", "trainer killed", "trainer stopped", "server killed")
    survive(Setup(mode, mode, kinds, 3.0, 0.4, 700, restless=True), tmp_path)


@pytest.mark.tools
@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "host lost"])
def test_a_fault_of_each_kind_has_a_victim(kind, tmp_path):
    survive(Setup("plain", kind, (kind,), 2.0, 0.3, 500, most=2), tmp_path)


@pytest.mark.tools
def test_nothing_is_lost_and_nothing_twice_over_several_servers(tmp_path):
    kinds = tuple(FAULTS)
    survive(Setup("segments", "two", kinds, 2.0, 0.3, 500, workers=1, servers=2), tmp_path)


def test_a_worker_waits_for_one_of_an_earlier_server_that_may_still_write(tmp_path, monkeypatch):
    """A stopped process holds the store; the server starts once that has ended."""
    pipeline = hs.from_examples([{"i": i} for i in range(8)]).batch(4)
    with hs.run(pipeline, state_dir=tmp_path):
        pass
    lock = tmp_path / "feeds" / "default" / "0.lock"
    hold = (
        f"import fcntl; lock = open({str(lock)!r}, 'r+'); fcntl.lockf(lock, fcntl.LOCK_EX); "
        "print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as orphan:
        assert orphan.stdout is not None and orphan.stdin is not None
        assert orphan.stdout.readline()
        log = Told("waits for the end of a worker of an earlier server")
        monkeypatch.setattr(sys, "stderr", log)  # workers print there
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(hs.run, pipeline, state_dir=tmp_path)
            try:
                assert log.told.wait(60), "it does not wait"
                assert not starting.done()
            finally:
                orphan.kill()
            with starting.result() as server, headrace.connect(server.address) as feed:
                assert [int(i) for batch in feed for i in batch["i"]] == list(range(8))


class Told(io.StringIO):
    """A stream of text in which a test looks for some words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.told = threading.Event()

    def write(self, text: str) -> int:
        if self._words in text:
            self.told.set()
        return super().write(text)
