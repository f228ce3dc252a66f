"""Lanes keep their examples, and a resumed feed gives what the original would have given next:
for both orders, every place of states, any number of partitions, workers and ranks.

Each case draws its data, its sizes, and the step of the snapshot.  A model of the test keeps a sum
for each lane.  It begins a sum anew at ``first`` and compares it with the data at ``last``.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

SEED = 20_261_126
UNROLL = 2
KINDS = [("arrival", "server"), ("lanes", "server"), ("lanes", "trainer"), ("lanes", "none")]
WORLDS = (0, 1, 2)  # 0: a trainer without a rank
#: Partitions and workers.
PLACES = [
    *[(2, 1), (3, 2)],
    *(pytest.param(*place, marks=pytest.mark.long) for place in [(1, 1), (3, 1), (2, 2)]),
]
#: A row as a trainer sees it: key, segment, lane (-1 without lanes), and flags.
Row = tuple[bytes, int, int, bool, bool, bool]
#: One step of all ranks: the partition, and the rows of each rank.
Step = list[tuple[int, list[Row]]]


@dataclass(frozen=True)
class Case:
    """One feed, and how it is trained."""

    order: str
    states: str
    partitions: int
    workers: int
    world: int

    @property
    def name(self) -> str:
        return f"{self.order}-{self.states}-{self.world}"

    def __str__(self) -> str:
        return f"{self.name} p{self.partitions} w{self.workers}"

    def drawn(self) -> Drawn:
        """Return what chance adds to the case; it depends on the case alone."""
        chance = random.Random(f"{SEED} {self}")
        batch_size = chance.choice([1, 2, 3])
        rows = batch_size * max(1, self.world)
        examples = [
            {
                "key": f"k{number:03d}",
                "x": np.array([chance.randrange(100) for _ in range(steps)], np.int64),
            }
            for number in range(chance.randint(2 * rows, 3 * rows) * self.partitions + 2)
            for steps in [chance.randint(1, 5 * UNROLL)]
        ]
        kwargs: dict[str, Any] = {
            "batch_size": batch_size,
            "capacity": chance.choice([2 * batch_size, 4 * batch_size, None]),
            "allow_small_batch": chance.random() < 0.7,
        }
        epochs = chance.choice([1, 1, 2])
        at, more = chance.randint(1, 8), chance.randint(0, 2)
        return Drawn(examples, kwargs, epochs, chance.random() < 0.5, at, more)


@dataclass(frozen=True)
class Drawn:
    examples: list[dict[str, Any]]
    options: dict[str, Any]
    epochs: int
    across_batches: bool
    at: int  # number of steps before the snapshot …
    more: int  # … and after it, before the next one

    def pipeline(self, case: Case) -> hs.Pipeline:
        states = {} if case.states == "none" else {"sum": hs.zeros((), "int64")}
        source = hs.from_examples(self.examples).repeat(
            self.epochs, across_batches=self.across_batches
        )
        placement = {"state_placement": "trainer"} if case.states == "trainer" else {}
        return source.batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=[],
            initial_states=states,
            num_unroll=UNROLL,
            order=case.order,
            **placement,
            **self.options,
        )

    @property
    def sums(self) -> dict[bytes, int]:
        return {one["key"].encode(): int(one["x"].sum()) for one in self.examples}

    @property
    def segments(self) -> set[tuple[bytes, int]]:
        """Key and number of every segment of an epoch."""
        return {
            (one["key"].encode(), segment)
            for one in self.examples
            for segment in range(-(-len(one["x"]) // UNROLL))
        }


class Training:
    """The ranks of one training, or its only trainer: each step takes one batch for each."""

    def __init__(
        self,
        address: str,
        case: Case,
        drawn: Drawn,
        world: int,
        memories: list[np.ndarray] | None = None,
    ) -> None:
        """``memories``: of the ranks, by lane, where the training goes on from a snapshot."""
        self._case, self._sums = case, drawn.sums
        self.faults: list[str] = []
        self.feeds = [
            headrace.connect(
                address,
                feed=case.name,
                prefetch=0,
                rank=rank if world else None,
                world_size=world or None,
                timeout=PATIENCE_S,
            )
            for rank in range(max(1, world))
        ]
        if memories is None and case.order == "lanes":
            memories = [np.zeros(feed.lanes, np.int64) for feed in self.feeds]
        self.memories = memories or []

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        for feed in self.feeds:
            feed.close()

    def run(self, most: int | None = None) -> list[Step]:
        """Take steps, at most so many; return what they saw."""
        steps: list[Step] = []
        while most is None or len(steps) < most:
            batches = [next(feed, None) for feed in self.feeds]
            if None in batches:
                assert batches == [None] * len(batches), "all ranks end at the same step"
                break
            steps.append([self._step(rank, batch) for rank, batch in enumerate(batches)])
            if self._case.states == "none":
                for feed in self.feeds:
                    feed.commit()
        return steps

    def _step(self, rank: int, batch: Any) -> tuple[int, list[Row]]:
        lanes = np.full(batch.rows, -1)
        news = batch.sequences["x"].sum(axis=1)
        if self._case.states != "none":
            sums = batch.state("sum") + news
            self._check(batch, sums, "state")
            batch.save_state("sum", sums)
        if self._case.order == "lanes":
            lanes = batch.lane
        if self.memories:
            memory = self.memories[rank]
            memory[lanes[batch.first]] = 0
            memory[lanes] += news
            self._check(batch, memory[lanes], "lane")
        facts = (batch.original_key, batch.sequence, lanes, batch.first, batch.last, batch.valid)
        return batch.partition, list(zip(*(np.array(fact).tolist() for fact in facts), strict=True))

    def _check(self, batch: Any, sums: np.ndarray, what: str) -> None:
        for row in np.flatnonzero(batch.last & batch.valid):
            wanted = self._sums[batch.original_key[row]]
            if sums[row] != wanted:
                self.faults.append(f"{self._case}: the sum of {batch.key[row]!r} by {what}")

    def snapshot(self) -> Any:
        """Return the token of a snapshot that is taken while all ranks stand still."""
        for feed in self.feeds:
            feed.commit()
        return self.feeds[0].snapshot()


def segments_of(steps: list[Step]) -> list[tuple[bytes, int]]:
    """Return the segments of all steps, as often as they came."""
    rows = (row for step in steps for _, rows in step for row in rows)
    return sorted((key, segment) for key, segment, _, _, _, valid in rows if valid)


def trainings(
    server: hs.Server,
    drawn: dict[Case, Drawn],
    worlds: dict[Case, int],
    memories: dict[Case, list[np.ndarray]],
) -> dict[Case, Training]:
    """Connect the trainers of all cases.

    At once, since new ranks of a resumed feed wait for seconds in case earlier ones come back.
    """
    with ThreadPoolExecutor(len(drawn)) as threads:
        begun = {
            case: threads.submit(
                Training, server.address, case, drawn[case], worlds[case], memories.get(case)
            )
            for case in drawn
        }
        return {case: training.result() for case, training in begun.items()}


@pytest.mark.parametrize(("partitions", "workers"), PLACES)
def test_lanes_keep_their_examples_and_a_resumed_feed_goes_on_as_the_original(
    partitions: int, workers: int, tmp_path: Path
) -> None:
    """1. Every feed is trained to its end, with a snapshot in the middle.
    2. A server with another number of workers goes on from each snapshot: the same steps come, with
       the same lanes.  A second snapshot is taken there after a few steps.
    3. Another server goes on from those, for another number of ranks: the same segments come.
    """
    cases = [Case(*kind, partitions, workers, world) for kind in KINDS for world in WORLDS]
    drawn = {case: case.drawn() for case in cases}
    worlds = {case: case.world for case in cases}
    feeds = {case.name: drawn[case].pipeline(case) for case in cases}
    options = {"partitions": partitions, "state_dir": tmp_path / "state"}
    faults: list[str] = []
    rest: dict[Case, list[Step]] = {}
    memories: dict[Case, list[np.ndarray]] = {}
    tokens: dict[Case, Any] = {}
    with hs.run(feeds, workers=workers, **options) as server:
        for case, training in trainings(server, drawn, worlds, {}).items():
            with training:
                begun = training.run(drawn[case].at)
                tokens[case] = training.snapshot()
                memories[case] = [memory.copy() for memory in training.memories]
                rest[case] = training.run()
            faults += training.faults
            if drawn[case].options["allow_small_batch"]:
                segments = sorted([*drawn[case].segments] * drawn[case].epochs)
                if segments_of(begun + rest[case]) != segments:
                    faults.append(f"{case}: lost or twice")
    with hs.run(feeds, workers=3 - workers, resume=list(tokens.values()), **options) as server:
        for case, training in trainings(server, drawn, worlds, memories).items():
            with training:
                again = training.run(drawn[case].more)
                tokens[case] = training.snapshot()
                if again + training.run() != rest[case]:
                    faults.append(f"{case}: it goes on otherwise after step {drawn[case].at}")
            faults += [f"resumed {fault}" for fault in training.faults]
    others = {case: (case.world + 1) % 3 for case in cases}
    nothing: dict[Case, list[np.ndarray]] = {case: [] for case in cases}
    with hs.run(feeds, workers=workers, resume=list(tokens.values()), **options) as server:
        for case, training in trainings(server, drawn, others, nothing).items():
            with training:
                last = segments_of(training.run())
            left = segments_of(rest[case][drawn[case].more :])
            if last != left and drawn[case].options["allow_small_batch"]:
                faults.append(f"{case} with world_size={others[case]}: lost or twice")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(("world", "lanes", "warned"), [(2, 8, True), (2, 16, False), (0, 6, True)])
def test_a_trainer_is_warned_of_lanes_that_the_data_can_not_fill(
    world: int, lanes: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.arange(lanes * 6 + 1, dtype=np.uint16).tofile(tmp_path / "tokens")
    text = hs.read_tokens(tmp_path / "tokens", "uint16", lanes=lanes).batch_sequences_with_states(
        input_key="key",
        input_sequences=["tokens"],
        input_context=[],
        initial_states={},
        num_unroll=2,
        batch_size=4,
        order="lanes",
    )
    ranks = {"rank": 0, "world_size": world} if world else {}
    with (
        hs.run(text, partitions=2) as server,
        headrace.connect(server.address, timeout=PATIENCE_S, **ranks) as feed,
    ):
        assert next(feed).valid.sum() == min(4, lanes // (2 * max(1, world)))
    said = [one.getMessage() for one in caplog.records if "sequences for" in one.getMessage()]
    assert len(said) == warned
    assert not warned or f"{lanes} sequences for {max(1, world) * 8} lanes" in said[0]
