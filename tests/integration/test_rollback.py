"""A state directory is restored to an earlier state while trainers live: they get an error.

trainers work ─► kill ─► copy ─► they work on ─► kill ─► the copy is put back ─► start
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .segment_streams import cells_of, chained, of_counts
from .serving import await_next_term, kill_all


class Place:
    """A server, its state directory, and a copy of that."""

    def __init__(self, path: Path, pipeline: hs.Pipeline) -> None:
        self.state, self._copy = path / "state", path / "copy"
        self._bind, self._pipeline = f"ipc://{path}/feed", pipeline
        self.server = self._serve()

    def _serve(self) -> hs.Server:
        return hs.run(
            self._pipeline, state_dir=self.state, bind=self._bind, durability="process", workers=1
        )

    def connect(self, **options: Any) -> headrace.Feed:
        return headrace.connect(self.server.address, timeout=PATIENCE_S, **options)

    def restart(self, between: Callable[[], object] = lambda: None) -> None:
        """Kill the server, do something, and start it again."""
        kill_all(self.server)
        self.server.close()
        between()
        self.server = self._serve()

    def close(self) -> None:
        self.server.close()

    def copy(self) -> None:
        shutil.copytree(self.state, self._copy)

    def put_back(self) -> None:
        await_next_term(self.state)
        shutil.rmtree(self.state)
        shutil.copytree(self._copy, self.state)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    pipeline = chained(of_counts([3] * 12), batch_size=2)
    with contextlib.closing(Place(tmp_path, pipeline)) as place:
        yield place


def work(feed: headrace.Feed, batches: int) -> list[Any]:
    """Train some batches, all of them acknowledged: tokens and segments."""
    done = []
    for _ in range(batches):
        batch = next(feed)
        for name in feed.states:
            batch.save_state(name, batch.state(name))
        done += [(batch.token, cell) for cell in cells_of(batch)]
    feed.commit()
    return done


def rest(place: Place) -> list[Any]:
    done = []
    with place.connect() as feed, contextlib.suppress(StopIteration):
        while True:
            done += work(feed, 1)
    return done


def assert_rewound(feed: headrace.Feed, why: str) -> None:
    with pytest.raises(headrace.FeedRewound, match=why):
        work(feed, 40)
    feed.close()


def test_trainers_of_a_start_that_was_forgotten_are_told_whatever_they_hold(place):
    """1. Two trainers work, one only watches.  The state is copied, and they go on.
    2. The copy is put back: all three get the error, also the one without batches in hand.
    3. Another trainer does the rows that the copy lacks, once, and under new tokens.
    """
    first, second, watcher = (place.connect(prefetch=p) for p in (2, 0, 0))
    kept = work(first, 2) + work(second, 2)
    place.restart(place.copy)
    lost = work(first, 2) + work(second, 1)
    next(second)  # in hand when the server dies
    trainers = first, second, watcher
    for trainer in trainers:
        trainer.stats()  # the answer of the server as it was restarted
    place.restart(place.put_back)
    for trainer in trainers:
        assert_rewound(trainer, "does not know start [0-9]+ of the server")
    again = rest(place)
    cells = [cell for _, cell in kept + again]
    assert len(cells) == len(set(cells)) == 36
    assert {cell for _, cell in lost} <= {cell for _, cell in again}
    assert min(token for token, _ in again) > max(token for token, _ in kept + lost)


def test_a_trainer_whose_acknowledged_commits_were_forgotten_is_told_and_others_go_on(place):
    """The copy is of the same start of the server: only commits show that it is an earlier one."""
    first, second = place.connect(prefetch=0), place.connect(prefetch=0)
    kept = work(first, 2) + work(second, 2)
    place.copy()  # no message is under way
    work(first, 1)
    place.restart(place.put_back)
    assert_rewound(first, "commits of this trainer are not in the state of feed 'default'")
    kept += work(second, 2)
    second.close()
    again = rest(place)
    cells = [cell for _, cell in kept + again]
    assert len(cells) == len(set(cells)) == 36


def test_a_journal_that_was_removed_is_missed_at_the_start_until_it_is_back(tmp_path, place):
    with place.connect(prefetch=0) as feed:
        kept = work(feed, 4)
    journal, elsewhere = place.state / "feeds" / "default" / "0.journal", tmp_path / "journal"
    refused = f"{journal} is damaged: it is gone, and commits were stored in it.*from a snapshot"
    with pytest.raises(headrace.ServerError, match=refused):
        place.restart(lambda: journal.rename(elsewhere))
    journal.mkdir()
    with pytest.raises(headrace.ServerError, match=f"^{journal}: Is a directory$"):
        place.restart()
    journal.rmdir()
    elsewhere.rename(journal)
    place.restart()
    cells = [cell for _, cell in kept + rest(place)]
    assert len(cells) == len(set(cells)) == 36
