"""Deaths of workers under flushes; state directories that are put back; journals that are removed.

a trainer saves and flushes ─► kill -9 of its worker at any moment ─► answered, or stale
trainers work ─► copy ─► they work on ─► the copy is put back ─► FeedRewound, nothing twice
trainers work ─► kill ─► the journal is removed ─► the next start is refused
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import headrace
import headrace_server as hs
from tests.integration.test_requests import sequences
from tests.integration.test_requests import work as train
from tests.integration.test_rollback import N, Place, numbers, rest, work

from .frame import Report, Setup

__all__ = ["run"]

_KILLS = 200
_KILLS_OF_A_SERVER = 3  # of one worker as many as are forgiven
_PLACES = 20  # that are put back, and journals that are removed
_PATIENCE_S = 100.0


def run(setup: Setup, report: Report) -> None:
    chance = setup.chance("recovery")
    for number in range(-(-setup.sized(_KILLS) // _KILLS_OF_A_SERVER)):
        _flushes(setup.scratch / f"flushes-{number}", chance, report)
    for number in range(setup.sized(_PLACES)):
        _put_back(setup.scratch / f"back-{number}", chance, report)
        _removed(setup.scratch / f"removed-{number}", chance, report)


def _flushes(state: Path, chance: random.Random, report: Report) -> None:
    """An honest trainer gets no error and waits for nothing in vain."""
    pipeline = sequences(2000, order="lanes", state_placement="trainer")
    with hs.run(pipeline, state_dir=state, durability="process") as server:
        feed = headrace.connect(server.address, timeout=_PATIENCE_S)
        with contextlib.suppress(headrace.StaleLease), feed:  # of its last batches
            for life in range(_KILLS_OF_A_SERVER):
                pid = server.pids[f"worker-0-{life}"]
                timer = threading.Timer(chance.uniform(0.1, 0.6), os.kill, (pid, signal.SIGKILL))
                timer.start()
                report.count("workers killed")
                while f"worker-0-{life + 1}" not in server.pids:
                    _flush(feed, report)
                timer.join()
            _flush(feed, report)


def _flush(feed: headrace.Feed, report: Report) -> None:
    try:
        train(feed, 1)
        feed.flush_states()
        report.count("flushes answered")
    except headrace.StaleLease:
        report.count("flushes and saves refused as stale")
    except headrace.HeadraceError as error:
        report.wrong(f"a flush: {type(error).__name__}: {error}")


def _put_back(path: Path, chance: random.Random, report: Report) -> None:
    """Either trainers get an error, or all acknowledged commits are in the state."""
    path.mkdir()
    place = Place(path, numbers())
    try:
        trainers = [place.connect(prefetch=chance.randrange(3)) for _ in range(2)]
        kept = [row for trainer in trainers for row in work(trainer, chance.randrange(1, 4))]
        if chance.random() < 0.5:
            place.copy()
        else:
            place.restart(place.copy)
        lost = [work(trainer, chance.randrange(3)) for trainer in trainers]
        place.restart(place.put_back)
        for trainer, rows in zip(trainers, lost, strict=True):
            try:
                kept += work(trainer, 1)
                if rows:
                    report.wrong(f"rows {rows} were acknowledged and forgotten without a word")
                report.count("trainers that had lost nothing")
            except headrace.FeedRewound:
                report.count("trainers told FeedRewound")
            trainer.close()
        if sorted(kept + rest(place)) != list(range(N)):
            report.wrong(
                "rows are missing, or were committed twice, after a directory was put back"
            )
        report.count("directories put back")
    finally:
        place.server.close()


def _removed(path: Path, chance: random.Random, report: Report) -> None:
    path.mkdir()
    place = Place(path, numbers())
    try:
        with place.connect() as feed:
            work(feed, chance.randrange(1, 8))
        try:
            place.restart((place.state / "feeds" / "default" / "0.journal").unlink)
            report.wrong("a journal was removed, and the server started")
        except headrace.ServerError as error:
            if "0.journal is damaged: it is gone" not in str(error):
                report.wrong(f"the refusal does not name the journal: {error}")
        report.count("journals removed")
    finally:
        place.server.close()
