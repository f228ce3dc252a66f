"""Ranks in step over feeds of segments: equal rounds, every segment once, despite deaths."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_with

from .processes import HERE, Process
from .segment_streams import (
    Cell,
    Ledger,
    at_once,
    cells_of,
    chained,
    full,
    of_counts,
    plain,
    save_all,
    states_in,
)
from .serving import connect, kill_worker, serving
from .test_segment_faults import told

COUNTS = [3, 1, 5, 2, 4, 1, 6, 2, 7, 1, 2, 9, 3]
BATCH_SIZE = 2
ORDERS = pytest.mark.parametrize(
    "order", [("arrival", "server"), ("lanes", "server"), ("lanes", "trainer")], ids="-".join
)


class Valid:
    """The rows of a batch that hold a segment, for a ledger."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._rows = np.flatnonzero(plain(batch.valid))
        self.sequences = {name: self._of(column) for name, column in batch.sequences.items()}
        self.context = {name: self._of(column) for name, column in batch.context.items()}

    def __getattr__(self, name: str) -> Any:
        return self._of(getattr(self._batch, name))

    def _of(self, column: Any) -> np.ndarray:
        return plain(column)[self._rows]

    def state(self, name: str) -> np.ndarray:
        return self._of(self._batch.state(name))

    def saved(self, states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return states of all rows; those of empty rows are arbitrary."""
        names = states_in(self._batch)
        whole = {name: plain(self._batch.state(name)).copy() for name in names}
        for name, value in states.items():
            whole[name][self._rows] = value
        return whole


def check(batch: Any, ledger: Ledger) -> dict[str, np.ndarray]:
    """Check a batch of a rank; return the states to save."""
    empty = ~plain(batch.valid)
    assert batch.rows == len(empty) == BATCH_SIZE
    assert not plain(batch.length)[empty].any() and set(plain(batch.key)[empty]) <= {b""}
    for column in (*batch.sequences.values(), *batch.context.values()):
        assert not plain(column)[empty].any()
    valid = Valid(batch)
    return valid.saved({} if empty.all() else ledger.check(valid))


class Ranks:
    """Ranks that meet in every step, as those of synchronous training do."""

    def __init__(self, server: hs.Server, ledger: Ledger, world: int) -> None:
        self.server, self.ledger, self.world = server, ledger, world
        self.barrier = threading.Barrier(world)
        self.fault: BaseException | None = None
        self.feeds: dict[int, headrace.Feed] = {}
        self.places: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in range(world)]

    def connect(self, rank: int, **options: Any) -> headrace.Feed:
        options = {"prefetch": 1, "timeout": PATIENCE_S, **options}
        where = {"rank": rank, "world_size": self.world}
        feed = self.feeds[rank] = headrace.connect(self.server.address, **where, **options)
        return feed

    def step(self, rank: int, batch: Any, save: bool = True) -> None:
        states = check(batch, self.ledger)
        held = self.feeds[rank]._link.trainer.hands[batch.token]
        self.places[rank].append((batch.partition, held.turn))
        self.barrier.wait(PATIENCE_S)
        if save:
            save_all(batch, states)

    def train(self, rank: int, **options: Any) -> None:
        with self.connect(rank, **options) as feed:
            for batch in feed:
                self.step(rank, batch)

    def run(self, *work: Callable[[], None]) -> None:
        others = [lambda rank=rank: self.train(rank) for rank in range(len(work), self.world)]
        at_once([lambda one=one: self._guarded(one) for one in (*work, *others)])

    def _guarded(self, work: Callable[[], None]) -> None:
        """Work; end the waits of the other ranks where this fails."""
        try:
            work()
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                self.fault = self.fault or error
            self.barrier.abort()
            raise self.fault or error from None

    def assert_in_step(self) -> None:
        assert all(places == self.places[0] for places in self.places) and self.places[0]


@ORDERS
def test_ranks_end_together_and_every_segment_comes_once(order):
    examples = of_counts(COUNTS)
    ledger = Ledger(examples)
    pipeline = full(examples, batch_size=2, order=order[0], state_placement=order[1])
    with serving(pipeline, partitions=2) as server:
        ranks = Ranks(server, ledger, 3)
        ranks.run(lambda: ranks.train(0, prefetch=0), lambda: ranks.train(1, prefetch=4))
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["rows"] == ledger.segments
    ranks.assert_in_step()
    ledger.assert_complete()


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_ranks_stay_in_step_when_a_worker_is_killed(order: str):
    examples = of_counts(COUNTS * 2)
    ledger = Ledger(examples)
    pipeline = chained(examples, batch_size=2, order=order)
    with hs.run(pipeline, workers=2, partitions=3) as server:
        ranks = Ranks(server, ledger, 2)

        def kills() -> None:
            with ranks.connect(0) as feed:
                for number, batch in enumerate(feed):
                    ranks.step(0, batch)
                    if number in (2, 9):
                        kill_worker(server, number % 2)

        ranks.run(kills)
        assert server.wait(PATIENCE_S)
    ranks.assert_in_step()
    ledger.assert_complete()


@ORDERS
def test_another_number_of_ranks_goes_on_with_all_states(order, tmp_path: Path):
    """1. One of two ranks has saved its member of a round when both leave.
    2. Three ranks go on in the next server, and then a trainer without a rank.
    """
    examples = of_counts(COUNTS)
    ledger = Ledger(examples)
    pipeline = chained(examples, batch_size=2, order=order[0], state_placement=order[1])
    options: dict[str, Any] = {"partitions": 2, "state_dir": tmp_path}
    with serving(pipeline, **options) as server:
        ranks = Ranks(server, ledger, 2)

        def some(rank: int) -> None:
            with ranks.connect(rank) as feed:
                for _ in range(2):
                    ranks.step(rank, next(feed))
                batch = next(feed)
                seen = len(cells_of(batch))
                if not rank:
                    ranks.step(rank, batch)
                else:
                    ranks.barrier.wait(PATIENCE_S)
                assert seen

        ranks.run(lambda: some(0), lambda: some(1))
    with serving(pipeline, **options) as server:
        ranks = Ranks(server, ledger, 3)

        def few(rank: int) -> None:
            with ranks.connect(rank) as feed:
                for _ in range(2):
                    ranks.step(rank, next(feed))

        ranks.run(*(lambda r=r: few(r) for r in range(3)))
        with connect(server) as feed:
            for batch in feed:
                save_all(batch, ledger.check(batch))
    ledger.assert_complete()


@ORDERS
def test_a_rank_that_returns_gets_the_same_member_of_the_round_again(order):
    """A rank that kept states has handed them over, and its rows may have other places."""
    examples = of_counts(COUNTS)
    ledger = Ledger(examples)
    pipeline = chained(examples, batch_size=2, order=order[0], state_placement=order[1])
    with serving(pipeline) as server:
        ranks = Ranks(server, ledger, 2)

        def dies() -> None:
            feed = ranks.connect(0)
            ranks.step(0, next(feed))
            held = cells_of(next(feed))
            feed.close()
            with ranks.connect(0) as feed:
                batch = next(feed)
                assert sorted(cells_of(batch)) == sorted(held)
                ranks.step(0, batch)
                for batch in feed:
                    ranks.step(0, batch)

        ranks.run(dies)
        assert server.wait(PATIENCE_S)
    ranks.assert_in_step()
    ledger.assert_complete()


def test_a_rank_that_waits_names_the_one_that_is_missing():
    examples = of_counts([2, 2])
    with serving(chained(examples, batch_size=1)) as server:
        with connect(server, rank=0, world_size=2) as feed:
            batch = next(feed)
            save_all(batch, {"chain": batch.state("chain")})
            missing = "1 ranks have not joined: 1"
            with waits_end_with(missing), pytest.raises(headrace.DeadlineExceeded, match=missing):
                next(feed)


def test_more_rows_than_the_capacity_are_refused_with_the_numbers():
    with serving(chained(of_counts([2]), batch_size=3, capacity=8)) as server:
        with pytest.raises(
            headrace.ProtocolError, match=r"world_size=3: .*batch_size=9 .*capacity=8"
        ):
            headrace.connect(server.address, rank=0, world_size=3)


def test_lanes_without_states_have_rounds_too():
    """Batches commit like plain ones; a rank that leaves gets again what it has not committed."""
    examples = of_counts(COUNTS)
    seen: Counter[Cell] = Counter()
    steps = [0, 0]
    shape = {"initial_states": {}, "order": "lanes", "batch_size": 2}
    with serving(chained(examples, **shape), partitions=2) as server:

        def train(rank: int) -> None:
            options = {"rank": rank, "world_size": 2, "timeout": PATIENCE_S}
            if not rank:
                feed = headrace.connect(server.address, **options)
                next(feed)  # not committed
                with pytest.raises(KeyError), feed:
                    raise KeyError
            with headrace.connect(server.address, **options) as feed:
                for batch in feed:
                    steps[rank] += 1
                    seen.update(cells_of(Valid(batch)))

        at_once([lambda: train(0), lambda: train(1)])
        assert server.wait(PATIENCE_S)
    assert steps[0] == steps[1] and seen.keys() == Ledger(examples).cells()
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_a_rank_that_is_killed_and_started_again_goes_on_where_it_was(placement: str):
    """Where its states were in its memory, its sequences begin again; it has as many steps."""
    examples = of_counts(COUNTS)
    ledger = Ledger(examples)
    pipeline = chained(examples, batch_size=2, order="lanes", state_placement=placement)
    with hs.run(pipeline, partitions=2, workers=1) as server:

        def rank(number: int, *more: str) -> Process:
            where = "--rank", str(number), "--world-size", "2", "--timeout", str(PATIENCE_S)
            return Process(str(HERE / "segment_trainer.py"), server.address, *where, *more)

        with rank(0) as one, rank(1, "--hold", "4") as dies:
            dies.wait_for("holding")
            dies.kill()
            with rank(1) as other:
                assert other.finish() == 0 and one.finish() == 0
    before, again = told(dies, ledger), told(other, ledger)
    assert len(told(one, ledger)) == len(before[:-1]) + len(again)
    batches = [*told(one, ledger), *before[:-1], *again]
    cells = [cell for batch in batches for cell in batch]
    assert set(cells) == ledger.cells()
    if placement == "server":
        assert again[0] == before[-1] and len(cells) == ledger.segments
    else:
        assert all(i == 0 for _, i in again[0])


def test_a_feed_of_ranks_is_taken_back_to_a_snapshot(tmp_path: Path):
    examples = of_counts(COUNTS)
    pipeline = chained(examples, batch_size=2, order="lanes", state_placement="trainer")
    with serving(pipeline, partitions=2, state_dir=tmp_path) as server:
        ledgers = [Ledger(examples), Ledger(examples)]
        first = Ranks(server, ledgers[0], 2)
        token: list[Any] = []

        def some(rank: int) -> None:
            with first.connect(rank) as feed:
                for _ in range(3):
                    first.step(rank, next(feed))
                feed.commit()  # of all ranks, before one takes the snapshot
                first.barrier.wait(PATIENCE_S)
                if not rank:
                    token.append(feed.snapshot())
                first.barrier.wait(PATIENCE_S)
                ledgers[1].seen = list(ledgers[0].seen)
                first.barrier.wait(PATIENCE_S)
                for _ in range(2):
                    first.step(rank, next(feed))

        first.run(lambda: some(0), lambda: some(1))
        again = Ranks(server, ledgers[1], 2)
        again.run(*(lambda rank=rank: again.train(rank, resume=token[0]) for rank in range(2)))
        again.assert_in_step()
    ledgers[1].assert_complete()
