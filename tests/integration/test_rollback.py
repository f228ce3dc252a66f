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

from .segment_streams import chained, of_counts
from .serving import await_next_term, kill_all

N = 40


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

    def copy(self) -> None:
        shutil.copytree(self.state, self._copy)

    def put_back(self) -> None:
        await_next_term(self.state)
        shutil.rmtree(self.state)
        shutil.copytree(self._copy, self.state)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[[hs.Pipeline], Place]]:
    with contextlib.ExitStack() as stack:

        def begin(pipeline: hs.Pipeline) -> Place:
            place = Place(tmp_path, pipeline)
            stack.callback(lambda: place.server.close())
            return place

        yield begin


def numbers() -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(N)]).batch(2)


def segments() -> hs.Pipeline:
    return chained(of_counts([3] * 12), batch_size=2)


def work(feed: headrace.Feed, batches: int) -> list[Any]:
    """Train some batches, all of them acknowledged: rows, or tokens and segments."""
    done = []
    for _ in range(batches):
        batch = next(feed)
        if feed.states:
            for name in feed.states:
                batch.save_state(name, batch.state(name))
            cells = zip(batch.original_key.tolist(), batch.sequence.tolist(), strict=True)
            done += [(batch.token, cell) for cell in cells]
        else:
            done += batch["i"].tolist()
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
        work(feed, N)
    feed.close()


@pytest.mark.parametrize("kind", [numbers, segments])
def test_trainers_of_a_start_that_was_forgotten_are_told_whatever_they_hold(
    place: Callable[[hs.Pipeline], Place], kind: Callable[[], hs.Pipeline]
):
    """1. Two trainers work, one only watches.  The state is copied, and they go on.
    2. The copy is put back: all three get the error, also the one without batches in hand.
    3. Another trainer does the rows that the copy lacks, once, and under new tokens.
    """
    at = place(kind())
    first, second, watcher = (at.connect(prefetch=p) for p in (2, 0, 0))
    kept = work(first, 2) + work(second, 2)
    at.restart(at.copy)
    lost = work(first, 2) + work(second, 1)
    next(second)  # in hand when the server dies
    trainers = first, second, watcher
    for trainer in trainers:
        trainer.stats()  # the answer of the server as it was restarted
    at.restart(at.put_back)
    for trainer in trainers:
        assert_rewound(trainer, "does not know start [0-9]+ of the server")
    again = rest(at)
    if kind is numbers:
        assert sorted(kept + again) == list(range(N)) and set(lost) <= set(again)
        return
    cells = [cell for _, cell in kept + again]
    assert len(cells) == len(set(cells)) == 36
    assert {cell for _, cell in lost} <= {cell for _, cell in again}
    assert min(token for token, _ in again) > max(token for token, _ in kept + lost)


@pytest.mark.parametrize("kind", [numbers, segments])
def test_a_trainer_whose_acknowledged_commits_were_forgotten_is_told_and_others_go_on(
    place: Callable[[hs.Pipeline], Place], kind: Callable[[], hs.Pipeline]
):
    """The copy is of the same start of the server: only commits show that it is an earlier one."""
    at = place(kind())
    first, second = at.connect(prefetch=0), at.connect(prefetch=0)
    kept = work(first, 2) + work(second, 2)
    at.copy()  # no message is under way
    lost = work(first, 1)
    at.restart(at.put_back)
    assert_rewound(first, "commits of this trainer are not in the state of feed 'default'")
    kept += work(second, 2)
    second.close()
    again = rest(at)
    if kind is numbers:
        assert sorted(kept + again) == list(range(N))
    else:
        cells = [cell for _, cell in kept + again]
        assert len(cells) == len(set(cells)) == 36
    assert lost


def test_a_journal_that_was_removed_is_missed_at_the_start_until_it_is_back(
    tmp_path: Path, place: Callable[[hs.Pipeline], Place]
):
    at = place(segments())
    with at.connect(prefetch=0) as feed:
        kept = work(feed, 4)
    journal, elsewhere = at.state / "feeds" / "default" / "0.journal", tmp_path / "journal"
    refused = f"{journal} is damaged: it is gone, and commits were stored in it.*from a snapshot"
    with pytest.raises(headrace.ServerError, match=refused):
        at.restart(lambda: journal.rename(elsewhere))
    journal.mkdir()
    with pytest.raises(headrace.ServerError, match=f"^{journal}: Is a directory$"):
        at.restart()
    journal.rmdir()
    elsewhere.rename(journal)
    at.restart()
    cells = [cell for _, cell in kept + rest(at)]
    assert len(cells) == len(set(cells)) == 36
