"""Whole servers and trainers under random faults, and planted bugs that the driver must find.

All processes and kills here are real.  The long form is ``make chaos-long``.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import headrace
import headrace_server as hs
from tests.chaos import driver, served
from tests.chaos.bugs import BUGS
from tests.chaos.driver import Setup, run
from tests.chaos.faults import FAULTS, LASTING
from tests.chaos.feeds import MODES, MORE_MODES, mode_of, pipeline
from tests.chaos.ledger import Ledger, read_lines
from tests.chaos.results import report
from tests.chaos.trainer import Trainer

#: Bugs by the law that they break.
QUICK = {
    "no fence": "nothing is acknowledged twice",
    "reply before commit": "what is acknowledged is committed",
    "no duplicate answer": "what is refused is not committed",
    "two records": "nothing is committed twice",
}
SLOW = {
    "wall clock": "a lease is kept",
    "no term": "a token is of one batch",
    "answers lost": "the run comes to its end",
    "nothing requeued": "the run comes to its end",
}
_TRIES = 4


def caught(name: str, law: str, seconds: float, workers: int, directory: Path) -> bool:
    """Return whether the driver finds a planted bug, which may take several tries."""
    bug = BUGS[name]
    for attempt in range(_TRIES):
        setup = Setup(
            bug.mode,
            f"{name} {attempt}",
            bug.kinds,
            seconds,
            0.3,
            1800,
            workers=workers,
            patience_s=8.0,
            bug=name,
        )
        scratch = directory / str(attempt)
        scratch.mkdir()
        if law in {found.law for found in run(setup, scratch).verdict.findings}:
            return True
    return False


def _marked(mode: str) -> object:
    """Leave two modes to ``make test-tools``: plain batches pass all the code of recovery."""
    return pytest.param(mode, marks=[pytest.mark.tools] * (mode in ("buckets", "sampled")))


def survive(setup: Setup, tmp_path: Path) -> None:
    outcome = run(setup, tmp_path)
    assert not outcome.verdict.findings, report(outcome)
    assert outcome.faults.total() and outcome.verdict.counts["cells"] > 100


@pytest.mark.parametrize("mode", [_marked(mode) for mode in MODES])
def test_nothing_is_lost_and_nothing_twice_under_random_faults(mode: str, tmp_path: Path) -> None:
    survive(Setup(mode, f"test {mode}", tuple(FAULTS), 2.0, 0.3, 500), tmp_path)


@pytest.mark.parametrize(
    ("mode", "workers", "durability"),
    [
        ("segments", 1, "power"),
        ("lanes", 1, "power"),
        pytest.param("plain", 3, "process", marks=pytest.mark.tools),
        pytest.param("lanes", 3, "process", marks=pytest.mark.tools),
        ("plain", 3, "off"),
        pytest.param("segments", 3, "off", marks=pytest.mark.tools),
        pytest.param("kept", 3, "off", marks=pytest.mark.tools),
    ],
)
def test_nothing_is_lost_and_nothing_twice_with_any_workers_and_stores(
    mode: str, workers: int, durability: str, tmp_path: Path
) -> None:
    kinds = LASTING if durability == "off" else tuple(FAULTS)
    seed = f"{mode} {workers} {durability}"
    setup = Setup(mode, seed, kinds, 2.0, 0.3, 500, workers=workers, durability=durability)
    survive(setup, tmp_path)


@pytest.mark.tools
@pytest.mark.parametrize("mode", list(MORE_MODES))
def test_nothing_is_lost_and_nothing_twice_whatever_trainers_do(mode: str, tmp_path: Path) -> None:
    """Ranks, epochs, other sizes, and trainers that are interrupted and leave."""
    kinds = ("worker killed", "trainer killed", "trainer stopped", "server killed")
    trainers = mode_of(mode).trainers
    setup = Setup(mode, mode, kinds, 3.0, 0.4, 700, trainers=trainers, restless=True)
    survive(setup, tmp_path)


@pytest.mark.tools
def test_nothing_is_lost_and_nothing_twice_over_several_servers(tmp_path: Path) -> None:
    kinds = tuple(FAULTS)
    survive(Setup("segments", "two", kinds, 2.0, 0.3, 500, workers=1, servers=2), tmp_path)


@pytest.mark.tools
@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", list(QUICK)[2:])
def test_another_planted_bug_is_caught_by_the_law_that_it_breaks(
    name: str, workers: int, tmp_path: Path
) -> None:
    assert caught(name, QUICK[name], 4.0, workers, tmp_path)


@pytest.mark.tools
@pytest.mark.parametrize("name", list(QUICK)[:2])
def test_a_planted_bug_is_caught_by_the_law_that_it_breaks(name: str, tmp_path: Path) -> None:
    assert caught(name, QUICK[name], 4.0, 2, tmp_path)


@pytest.mark.tools
@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", SLOW)
def test_a_planted_bug_that_shows_late_is_caught(name: str, workers: int, tmp_path: Path) -> None:
    assert caught(name, SLOW[name], 8.0, workers, tmp_path)


@pytest.mark.tools
def test_the_end_of_a_server_that_nobody_brought_about_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's record of its kills is disabled, so it reports leftovers of the last server."""

    def kill(server: served.Server) -> None:
        assert server.process is not None
        server.process.kill()

    monkeypatch.setattr(served.Server, "kill", kill)
    monkeypatch.setattr(served, "living", lambda sessions: [1])
    monkeypatch.setattr(served, "_LEFT_S", 5.0)
    found = run(Setup("plain", "ends", ("server killed",), 2.0, 0.3, 500), tmp_path)
    laws = {"a server ends when it is told to", "nothing is left behind"}
    assert {finding.law for finding in found.verdict.findings} == laws


@pytest.mark.tools
def test_the_end_of_a_trainer_that_nobody_brought_about_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_TRAINER_CODES", (0,))
    found = run(Setup("plain", "ends", ("trainer killed",), 2.0, 0.3, 500), tmp_path)
    assert {finding.law for finding in found.verdict.findings} == {"a trainer ends well"}


@pytest.mark.tools
def test_a_trainer_notes_a_refused_snapshot_and_goes_on(tmp_path: Path) -> None:
    """The server has no state directory, so it refuses each snapshot."""
    chance = random.Random()
    chance.random = lambda: 0.55  # type: ignore[method-assign]
    ledger = tmp_path / "ledger"
    trainer = Trainer(Ledger(str(ledger), "t0.0"), mode_of("plain"), chance, "", 0.0)
    asked = time.monotonic()
    with hs.run(pipeline("plain", 40)) as server, headrace.connect(server.address) as feed:
        assert trainer._does_something(feed, next(feed).token)
        assert len(list(feed)) == 9
    _send, line = read_lines(ledger)
    assert line.what == "unmade" and asked < line.more[0] < line.at
    assert "state directory" in line.more[1]


@pytest.mark.tools
def test_every_planted_bug_is_tried() -> None:
    assert BUGS.keys() == QUICK.keys() | SLOW.keys()


def test_a_worker_waits_for_one_of_an_earlier_server_that_may_still_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
