"""Plain feeds of several owners: one stream, the same rounds for all ranks, and owners that die."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace.session import Session
from tests.patience import PATIENCE_S, eventually

from .segment_streams import at_once
from .serving import kill_worker

_OWNERS = 3
#: Bucket and numbers of the rows of a batch.
_Seen = tuple[int, list[int]]


def numbers(count: int) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(count)]).shuffle(seed=3).batch(4)


def bucketed() -> hs.Pipeline:
    lengths = [1 + i * 7 % 23 for i in range(400)]
    examples = [{"x": [0.0] * n, "n": n, "i": i} for i, n in enumerate(lengths)]
    columns = {"x": hs.sequence("float32"), "n": hs.scalar("int64"), "i": hs.scalar("int64")}
    return (
        hs.from_examples(examples, columns)
        .shuffle(seed=5)
        .bucket_by_sequence_length(
            "n", 4, [6, 12, 18], dynamic_pad=True, allow_smaller_final_batch=True
        )
    )


def read(server: hs.Server, **options: Any) -> list[list[int]]:
    with headrace.connect(server.address, timeout=PATIENCE_S, **options) as feed:
        return [batch["i"].tolist() for batch in feed]


def of_rank(server: hs.Server, rank: int, kills_at: int = -1) -> list[_Seen]:
    """Return the batches of one of two ranks, which kills an owner at one step."""
    seen: list[_Seen] = []
    options = {"rank": rank, "world_size": 2, "prefetch": 1 + 3 * rank}
    with headrace.connect(server.address, timeout=PATIENCE_S, **options) as feed:
        for step, batch in enumerate(feed):
            seen.append((int(batch.bucket), batch["i"].tolist()))
            if step == kills_at:
                kill_worker(server)
    return seen


@pytest.mark.parametrize("prefetch", [0, 4])
def test_trainers_that_hold_all_that_slabs_have_room_for_do_not_wait_for_each_other(prefetch: int):
    with hs.run(numbers(400), workers=_OWNERS, partitions=5, slab_bytes=2 << 12) as server:
        got = at_once([lambda: read(server, prefetch=prefetch) for _ in range(4)])
        assert server.wait(PATIENCE_S)
    assert sorted(i for batches in got for batch in batches for i in batch) == list(range(400))


@pytest.mark.parametrize("workers", [1, _OWNERS])
def test_partitions_that_have_ended_do_not_hinder_other_proportions(workers: int):
    """The second partition has only examples of a class of which few are drawn."""
    labels = [0 if 1000 <= i < 2000 else i % 2 for i in range(3000)]
    pipeline = hs.from_examples([{"y": label} for label in labels])
    pipeline = pipeline.stratified_sample("y", [0.5, 0.5], 4, [0.99, 0.01])
    with (
        hs.run(pipeline, workers=workers, partitions=3) as server,
        headrace.connect(server.address, timeout=PATIENCE_S, prefetch=0) as feed,
    ):
        while not server.stats()["default"]["partitions"][1]["done"]:
            next(feed)
        assert feed.set_target_probs([0.25, 0.75]).keys() == {0, 2}
        for _ in feed:
            pass
        with pytest.raises(ValueError, match=": the feed has ended"):
            feed.set_target_probs([0.25, 0.75])


@pytest.mark.parametrize("workers", [1, _OWNERS])
def test_a_trainer_may_hold_all_that_slabs_have_room_for(workers: int):
    def some(feed: headrace.Feed) -> list[int]:
        batches = list(itertools.islice(feed, 2 * workers))
        feed.commit(batches)
        return [int(i) for batch in batches for i in batch["i"]]

    with (
        hs.run(numbers(240), workers=workers, slab_bytes=2 << 12) as server,
        headrace.connect(server.address, commit="explicit", timeout=PATIENCE_S) as feed,
    ):
        got = list(itertools.chain(*iter(lambda: some(feed), [])))
        assert server.wait(PATIENCE_S)
    assert sorted(got) == list(range(240))


def run(pipeline: hs.Pipeline, state: Path | None, workers: int = _OWNERS) -> hs.Server:
    options: dict[str, Any] = {} if state is None else {"state_dir": state}
    return hs.run(pipeline, workers=workers, partitions=5, **options)


@pytest.mark.parametrize("workers", [1, _OWNERS])
def test_a_feed_whose_owners_die_at_its_end_ends_all_the_same(workers: int):
    """Some partitions are over by then, and there is an owner for each of three partitions."""
    got: list[int] = []
    with hs.run(numbers(240), workers=workers, partitions=3) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            for step, batch in enumerate(feed, 1):
                got += batch["i"].tolist()
                if step in (59, 60):
                    kill_worker(server, step % workers, life=step - 59 if workers == 1 else 0)
        assert server.wait(PATIENCE_S)
    assert sorted(got) == list(range(240))


@pytest.mark.parametrize("workers", [1, _OWNERS])
def test_an_input_that_is_closed_while_an_owner_is_dead_is_closed_there_too(workers: int):
    with hs.run(numbers(8000), workers=workers, partitions=5) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            got = [i for batch in itertools.islice(feed, 20) for i in batch["i"].tolist()]
            kill_worker(server)
            feed.drain()
            got += [i for batch in feed for i in batch["i"].tolist()]
        assert server.wait(PATIENCE_S)
    assert len(got) == len(set(got)) < 4000


@pytest.mark.parametrize("workers", [1, 2])
def test_loops_that_hold_all_that_is_left_end_before_it_is_committed(workers: int):
    """Each trainer holds the last batch of one partition."""
    options: dict[str, Any] = {"commit": "explicit", "prefetch": 0, "timeout": PATIENCE_S}
    with (
        hs.run(numbers(8), workers=workers, partitions=2) as server,
        headrace.connect(server.address, **options) as one,
        headrace.connect(server.address, **options) as two,
    ):
        held = [next(one), next(two)]
        assert at_once([lambda: next(one, None), lambda: next(two, None)]) == [None, None]
        for batch in held:
            batch.commit()
        assert server.wait(PATIENCE_S)


@pytest.mark.parametrize("workers", [1, _OWNERS])
@pytest.mark.parametrize("durable", [True, False])
def test_ranks_stay_in_step_when_an_owner_dies(tmp_path: Path, durable: bool, workers: int):
    """The rounds of a rank are stored before it gets them, also where a thread syncs them."""
    with run(bucketed(), tmp_path if durable else None, workers=workers) as server:
        one, two = at_once(
            [lambda r=rank, at=at: of_rank(server, r, at) for rank, at in ((0, 5), (1, -1))]
        )
        assert server.wait(PATIENCE_S)
    assert [bucket for bucket, _ in one] == [bucket for bucket, _ in two]
    rows = [i for seen in (one, two) for _, batch in seen for i in batch]
    assert len(rows) == len(set(rows))


def test_ranks_that_greet_a_new_owner_late_go_on_with_their_rounds(monkeypatch: pytest.MonkeyPatch):
    """1. Rank 0 is ahead of rank 1, and kills the owner.
    2. The next life makes most of what is left before a rank greets it.
    3. Each rank goes on after what it has done.
    """
    is_killed, is_made = threading.Event(), threading.Event()
    say = Session.outgoing

    def outgoing(session: Session, now: float) -> list[Any]:
        returns = session.welcome is not None and not session.connected
        return say(session, now) if not returns or is_made.wait(0.05) else []

    monkeypatch.setattr(Session, "outgoing", outgoing)
    with run(bucketed(), None, workers=1) as server:

        def train(rank: int) -> list[_Seen]:
            seen: list[_Seen] = []
            with headrace.connect(
                server.address, timeout=PATIENCE_S, rank=rank, world_size=2
            ) as feed:
                for step, batch in enumerate(feed):
                    seen.append((int(batch.bucket), batch["i"].tolist()))
                    if rank and step == 3:
                        assert is_killed.wait(PATIENCE_S)
                    if not rank and step == 12:
                        kill_worker(server)
                        is_killed.set()
            return seen

        def wait_until_made() -> None:
            assert is_killed.wait(PATIENCE_S)
            eventually(lambda: "worker-0-1" in server.pids)
            eventually(lambda: server.stats()["default"]["standing"]["ready"] > 60)
            is_made.set()

        one, two, _ = at_once([lambda: train(0), lambda: train(1), wait_until_made])
    assert [bucket for bucket, _ in one] == [bucket for bucket, _ in two]
    rows = [i for seen in (one, two) for _, batch in seen for i in batch]
    assert len(rows) == len(set(rows))
