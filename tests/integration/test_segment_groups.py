"""A group of trainers gets one batch of segments, and its states are stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .processes import HERE, Process
from .segment_streams import Cell, Ledger, at_once, cells_of, chained, full, of_counts, save_all
from .serving import kill_worker
from .test_segment_faults import told
from .test_segment_ranks import COUNTS, ORDERS, Valid, check

Stream = list[list[Cell]]


def member(
    server: hs.Server,
    ledger: Ledger,
    rank: int = 0,
    world: int = 1,
    steps: int | None = None,
    at_step: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> Stream:
    """Train as one of two members of a rank, each with a ledger of its own; return its batches."""
    stream: Stream = []
    with headrace.connect(
        server.address,
        rank=rank,
        world_size=world,
        group=f"g{rank}",
        members=2,
        timeout=PATIENCE_S,
        **options,
    ) as feed:
        for batch in feed:
            at_step(len(stream))
            states = check(batch, ledger)
            stream.append(cells_of(Valid(batch)))
            save_all(batch, states)
            if len(stream) == steps:
                break
    return stream


@ORDERS
def test_members_of_each_rank_take_the_same_segments_and_each_is_committed_once(
    order: tuple[str, str],
):
    examples = of_counts(COUNTS)
    ledgers = [Ledger(examples) for _ in range(2)]
    pipeline = full(examples, batch_size=2, order=order[0], state_placement=order[1])
    with hs.run(pipeline, workers=0, partitions=2) as server:
        streams = at_once(
            [
                lambda r=r, m=m: member(server, ledgers[m], r, 2, prefetch=3 * m)
                for r in range(2)
                for m in range(2)
            ]
        )
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["rows"] == ledgers[0].segments
    assert streams[0] == streams[1] and streams[2] == streams[3]
    for ledger in ledgers:
        ledger.assert_complete()


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_workers_are_killed_and_members_go_on_with_what_they_have(order: str):
    """One member fetches ahead and the other does not, so they have different batches in hand."""
    examples = of_counts(COUNTS * 2)
    ledgers = [Ledger(examples) for _ in range(2)]
    pipeline = chained(examples, batch_size=2, order=order)
    with hs.run(pipeline, workers=2, partitions=3) as server:

        def kill(step: int) -> None:
            if step in (3, 10):
                kill_worker(server, step % 2)

        one, two = at_once(
            [
                lambda: member(server, ledgers[0], at_step=kill, prefetch=2),
                lambda: member(server, ledgers[1], prefetch=0),
            ]
        )
        assert server.wait(PATIENCE_S)
    assert one == two
    for ledger in ledgers:
        ledger.assert_complete()


@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_a_member_is_killed_and_the_next_one_gets_what_it_had_in_hand(placement: str):
    """Where its states were in its memory, sequences begin again for all members."""
    examples = of_counts(COUNTS)
    ledger = Ledger(examples)
    pipeline = chained(examples, batch_size=2, order="lanes", state_placement=placement)
    with hs.run(pipeline, workers=0, lease_ttl_s=2) as server:

        def start(*more: str) -> Process:
            of = "--rank", "0", "--world-size", "1", "--group", "g", "--members", "2"
            arguments = server.address, "--timeout", str(PATIENCE_S), *of, *more
            return Process(str(HERE / "segment_trainer.py"), *arguments)

        with start() as one, start("--hold", "4") as dies:
            dies.wait_for("holding")
            dies.kill()
            with start() as other:
                assert other.finish() == 0 and one.finish() == 0, one.output() + other.output()
        assert server.wait(PATIENCE_S)
    stream, before, again = told(one, ledger), told(dies, ledger), told(other, ledger)
    if placement == "server":
        assert stream == [*before[:-1], *again] and again[0] == before[-1]
        ledger.assert_complete([cell for batch in stream for cell in batch])
    else:
        assert all(i == 0 for _, i in again[0]) and stream[-len(again) :] == again
        assert {cell for batch in stream for cell in batch} == ledger.cells()


def test_members_leave_with_states_in_their_memory_and_others_go_on_from_these():
    examples = of_counts(COUNTS)
    ledgers = [Ledger(examples) for _ in range(2)]
    pipeline = chained(examples, batch_size=2, order="lanes", state_placement="trainer")
    with hs.run(pipeline, workers=0, partitions=2) as server:
        for steps in (5, None):
            one, two = at_once(
                [lambda m=m, n=steps: member(server, ledgers[m], steps=n) for m in range(2)]
            )
            assert one == two
        assert server.wait(PATIENCE_S)
    for ledger in ledgers:
        ledger.assert_complete()


def test_segments_without_states_are_committed_by_asking_for_the_next():
    examples = of_counts(COUNTS)
    pipeline = chained(examples, initial_states={}, order="lanes", batch_size=2)
    with hs.run(pipeline, workers=0, partitions=2) as server:

        def read() -> Stream:
            options = {"rank": 0, "world_size": 1, "group": "g", "members": 2}
            with headrace.connect(server.address, timeout=PATIENCE_S, **options) as feed:
                return [cells_of(Valid(batch)) for batch in feed]

        one, two = at_once([read, read])
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["rows"] == Ledger(examples).segments
    assert one == two
    assert Counter(cell for batch in one for cell in batch) == Counter(Ledger(examples).cells())


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_a_member_that_comes_back_does_not_wait_for_an_owner_whose_round_it_took(order: str):
    """The other member waits for the first owner, and asks the second for nothing until then."""
    examples = of_counts(COUNTS * 2)
    ledgers = [Ledger(examples) for _ in range(2)]
    pipeline = chained(examples, batch_size=2, order=order)
    with hs.run(pipeline, workers=2, partitions=3) as server:

        def leaves_and_comes_back() -> Stream:
            options = {"rank": 0, "world_size": 1, "group": "g0", "members": 2, "prefetch": 0}
            taken = []
            with headrace.connect(server.address, timeout=PATIENCE_S, **options) as feed:
                for batch in feed:
                    if batch.partition == 2:
                        break
                    states = check(batch, ledgers[1])
                    taken.append(cells_of(Valid(batch)))
                    save_all(batch, states)
            return taken + member(server, ledgers[1], prefetch=0)

        one, two = at_once([lambda: member(server, ledgers[0], prefetch=0), leaves_and_comes_back])
        assert server.wait(PATIENCE_S)
    assert one == two
    for ledger in ledgers:
        ledger.assert_complete()
