"""One partition from its source to its slab, with real readers, stages and memory."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.leasing.words import ANYONE, Batch, Order, Outlook
from headrace_server.partition.partition_run import Run
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.intake import Intake
from headrace_server.shaping.stored_state import Change, Examples, Saved
from tests.examples import some
from tests.unit.segment_player import Place

# Functions of the user's


def odd_is_bad(example: dict[str, Any]) -> dict[str, Any]:
    if example["i"] % 5 == 3:
        raise ValueError("not this one")
    return {"i": example["i"], "steps": np.full(2, example["i"], np.float32)}


def bad_from_64_on(example: dict[str, Any]) -> dict[str, Any]:
    if example["i"] >= 64:
        raise ValueError("not this one")
    return example


def no_sevens(example: dict[str, Any]) -> bool:
    return bool(example["i"] % 7)


def from_150_on(example: dict[str, Any]) -> bool:
    return bool(example["i"] >= 150)


def nothing(example: dict[str, Any]) -> bool:
    return False


def of_two_classes(example: dict[str, Any]) -> dict[str, Any]:
    return {"i": example["i"], "y": int(example["i"] % 5 > 1)}


def doubled(example: dict[str, Any]) -> dict[str, Any]:
    return {"twice": 2 * example["i"]}


def numbered(n: int) -> Pipeline:
    return hs.from_examples([{"i": i, "t": b"t" * (i % 4), "v": [i] * (i % 3)} for i in range(n)])


@pytest.fixture
def place(tmp_path: Path) -> Callable[..., Place]:
    """Makes places, each with a directory of its own."""
    return partial(Place, directory=tmp_path)


def advance(feed: Run) -> list[Batch] | Outlook:
    return feed.make(ANYONE, sys.maxsize)


def step(feed: Run) -> Any:
    """The next batch, or the reason why there is none."""
    while not (made := advance(feed)):
        pass
    if not isinstance(made, list):
        return made
    (batch,) = made
    return batch


def ordered(feed: Run, kind: str, what: Any) -> Order:
    """An order, once all batches are made again that an earlier life has made."""
    while (order := feed.propose((kind, what))) is None:
        assert advance(feed) == []
    return order


def contents(place: Place, made: Batch) -> tuple[Any, ...]:
    """Return the bytes of a batch and its description."""
    block = place.slab.memory(made.body.block)
    columns = [(s, block[s.offset : s.offset + s.nbytes].tobytes()) for s in made.body.slots]
    return made.number, made.turn, made.rows, made.epoch, made.bucket, made.nbytes, columns


def play(place: Place, feed: Run, end: Outlook = Outlook.ENDED) -> list[tuple[Any, ...]]:
    """All batches that are left, each committed and freed at once."""
    batches = []
    while isinstance(made := advance(feed), list):
        for one in made:
            batches.append(contents(place, one))
            commit(place, feed, one)
    assert made is end and advance(feed) is end and feed.machine.finished
    return batches


def commit(place: Place, feed: Run, batch: Batch, saved: Saved | None = None) -> None:
    assert feed.commit(batch, 1, None) is None
    if saved is not None:
        store(saved, feed)
    place.slab.free(batch.body.block)


def nothing_saved() -> Saved:
    return Saved({}, Examples(), {}, [], [])


def store(saved: Saved, feed: Run) -> None:
    """Store what a feed has to store, as the journal does."""
    change: Change
    for change in feed.take_records():
        saved.meta.update(change.meta)
        saved.done = [n for n in [*saved.done, *change.done] if n >= (change.base or 0)]


PIPELINES: dict[str, Callable[[Path], Pipeline]] = {
    "bad examples, skipped": lambda _: (
        numbered(200)
        .options(on_bad_example="skip")
        .shuffle(seed=9, window=50)
        .filter(f"{__name__}:no_sevens")
        .map(f"{__name__}:odd_is_bad")
        .batch(11)
    ),
    "windows of a stream with bad lines": lambda path: (
        hs.read_jsonl(lines(path), {"i": hs.scalar("int64")})
        .options(on_bad_example="skip")
        .shuffle(seed=5, window=90)
        .batch(8)
    ),
}


def lines(directory: Path) -> str:
    """A file that can only be read forward, of 200 lines, every ninth of which is none."""
    path = directory / "lines.jsonl.gz"
    text = "".join("{oops\n" if i % 9 == 4 else f'{{"i": {i}}}\n' for i in range(200))
    path.write_bytes(gzip.compress(text.encode()))
    return str(path)


@pytest.mark.parametrize("name", PIPELINES)
def test_from_the_cursor_of_any_batch_another_place_goes_on_to_the_byte(
    name: str, place: Callable[..., Place], tmp_path: Path
):
    pipeline = PIPELINES[name](tmp_path)
    here = place(pipeline)
    feed = here.begin()
    batches, lives, saved = [], [], nothing_saved()
    while isinstance(made := step(feed), Batch):
        batches.append(contents(here, made))
        feed._mark_here()
        commit(here, feed, made, saved)
        lives.append(deepcopy(saved))
    dropped = feed.dropped()
    assert len(batches) > 5 and dropped
    for number, life in enumerate(lives):
        assert not life.done
        there = place(pipeline)
        successor = there.begin()
        successor.resume(life)
        assert successor.machine.next_turn(ANYONE) == (0, number + 1)
        assert successor.schema == feed.schema
        rest = play(there, successor)
        assert rest == batches[number + 1 :]
        assert successor.dropped() == dropped


def test_where_a_read_fails_there_is_a_cursor_after_what_was_made_before_it(
    place: Callable[..., Place],
):
    pipeline = hs.from_examples([{"i": i} for i in range(100)]).map(bad_from_64_on).batch(8)
    here = place(pipeline)
    feed, saved = here.begin(), nothing_saved()
    for number in range(8):
        made = step(feed)
        assert made.number == number
        commit(here, feed, made)
    with pytest.raises(DataError, match="not this one"):
        step(feed)
    store(saved, feed)
    there = place(pipeline)
    successor = there.begin()
    successor.resume(saved)
    assert successor.machine.next_turn(ANYONE) == (0, 8) and not saved.done
    with pytest.raises(DataError, match="not this one"):
        step(successor)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=some(25))
@given(data=st.data())
def test_a_full_slab_blocks_and_a_freed_block_lets_it_go_on_with_the_same_batch(
    data: st.DataObject, place: Callable[..., Place]
):
    pipeline = numbered(60).batch(4, dynamic_pad=True)
    want = play(whole := place(pipeline), whole.begin())
    pages = data.draw(st.integers(1, 5))
    here = place(pipeline, slab_pages=pages)
    feed, saved = here.begin(), nothing_saved()
    held: list[Batch] = []
    got, done = [], set()
    while len(got) < len(want):
        made = step(feed)
        if isinstance(made, Batch):
            got.append(contents(here, made))
            held.append(made)
            continue
        assert made is Outlook.FULL and advance(feed) is Outlook.FULL and not feed.machine.finished
        assert feed.sizes()["ready"] == 1, "the batch that waits for memory"
        if len(held) < 8 * pages and data.draw(st.booleans()):
            (beyond,) = feed.make(ANYONE, sys.maxsize, beyond=True)
            got.append(contents(here, beyond))
            held.append(beyond)
            continue
        assert feed.machine.next_turn(ANYONE) == (0, len(got))
        there = place(pipeline)
        successor = there.begin()
        successor.resume(deepcopy(saved))
        assert play(there, successor) == [one for one in want if one[0] not in done]
        gone = held.pop(data.draw(st.integers(0, len(held) - 1)))
        done.add(gone.number)
        commit(here, feed, gone, saved)
    assert got == want


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=some(25))
@given(count=st.integers(2, 9), pages=st.integers(1, 9), size=st.integers(1, 9))
def test_batches_of_one_step_are_those_that_come_one_by_one(
    count: int, pages: int, size: int, place: Callable[..., Place]
):
    pipeline = numbered(60).repeat(2, across_batches=False).batch(size, dynamic_pad=True)
    want = play(whole := place(pipeline), whole.begin())
    here = place(pipeline, slab_pages=pages)
    feed, got, together, read = here.begin(), [], 0, 0
    while (made := feed.make(ANYONE, sys.maxsize, most=count)) is not Outlook.ENDED:
        assert isinstance(made, list) and len(made) <= count
        assert not made or feed.intake.rows_read == read
        read = feed.intake.rows_read
        together = max(together, len(made))
        for batch in made:
            got.append(contents(here, batch))
            commit(here, feed, batch)
    assert got == want and together == min(count, pages, 60 // size)


def test_a_step_ends_after_a_mebibyte_of_batches(place: Callable[..., Place]):
    rows = [{"x": np.zeros(60_000, np.float32)} for _ in range(16)]
    feed = place(hs.from_examples(rows).batch(2), slab_pages=4096).begin()
    while not (made := feed.make(ANYONE, sys.maxsize, most=9)):
        pass
    assert len(made) == 3


def test_batches_before_one_that_can_not_be_made_go_out_first(place: Callable[..., Place]):
    rows = [{"i": i, "v": [0] * (1 + (i == 11))} for i in range(12)]
    feed = place(hs.from_examples(rows).batch(4)).begin()
    made = list[Batch]()
    while not made:
        made = feed.make(ANYONE, sys.maxsize, most=9)
    assert [batch.number for batch in made] == [0, 1]
    for _ in range(2):
        with pytest.raises(DataError, match="unequal shapes"):
            feed.make(ANYONE, sys.maxsize, most=9)


@pytest.mark.parametrize("batches", [1, 3])
def test_no_more_examples_wait_in_buckets_than_may_be_in_flight(
    batches: int, place: Callable[..., Place]
):
    """With the least number a read brings one, as each bucket may lack one of its batches."""
    balance = {"balance": "i", "balance_batches": batches} if batches > 1 else {}
    most = (3 * batches - 1) + (4 * batches - 1) + 1
    pipeline = numbered(300).bucket_by_sequence_length(
        "v", [3, 4], [1], dynamic_pad=True, max_examples_in_flight=most, **balance
    )
    here, waiting = place(pipeline), list[int]()
    feed = here.begin()
    while isinstance(made := advance(feed), list):
        waiting.append(feed.sizes()["incomplete"])
        for batch in made:
            commit(here, feed, batch)
    assert made is Outlook.ENDED and max(waiting) <= most


def test_beyond_a_full_slab_a_session_gets_its_own_batch_before_decided_ones_of_others(
    place: Callable[..., Place],
):
    examples = [{"key": b"%d" % i, "x": np.zeros((6, 16), np.float32)} for i in range(8)]
    pipeline = hs.from_examples(examples).batch_sequences_with_states(
        input_key="key", input_sequences=["x"], input_context=[], input_length=None,
        initial_states={}, num_unroll=2, batch_size=2, capacity=8, order="lanes",
    )  # fmt: skip
    feed = place(pipeline, slab_pages=1).begin()

    def made(slot: bytes, beyond: bool = False) -> list[Batch] | Outlook:
        while not (out := feed.make(slot, sys.maxsize, beyond)):
            pass
        return out

    assert made(b"one") and made(b"one") is Outlook.FULL
    assert made(b"two") is Outlook.FULL
    for slot in (b"two", b"one", b"two"):
        (batch,) = made(slot, beyond=True)
        assert batch.slot == slot


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("steps", range(12))
def test_a_close_between_any_two_steps_ends_the_next_process_at_the_same_row(
    steps: int,
    cancel: bool,
    place: Callable[..., Place],
    monkeypatch: pytest.MonkeyPatch,
):
    """A read is a step of its own, and one that is to come when the input ends is not made.

    The next process reads fewer rows at once, or more.
    """
    monkeypatch.setattr(Intake, "limit", lambda self, most: 64)
    pipeline = numbered(2000).batch(10, allow_smaller_final_batch=True, dynamic_pad=True)
    here = place(pipeline)
    feed, batches, open_, read_next = here.begin(), [], [], 0
    for _ in range(steps):
        made = advance(feed)
        read_next += feed.reads_next
        batches += [contents(here, one) for one in made]
        open_ += made
    order = ordered(feed, "close", cancel)
    assert advance(feed) == [], "it makes nothing until the order is stored"
    feed.apply(order)
    assert not feed.reads_next
    store(saved := nothing_saved(), feed)
    for made in open_:
        commit(here, feed, made)
    batches += play(here, feed)
    limit = (7, 640)[(steps + cancel) % 2]
    monkeypatch.setattr(Intake, "limit", lambda self, most: limit)
    there = place(pipeline)
    again = there.begin()
    again.resume(saved)
    assert play(there, again) == batches and again.dropped() == feed.dropped()
    assert steps < 11 or read_next > 1, "the steps include reads that were to come"


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("cancel", [False, True])
def test_a_close_lets_the_batches_be_made_again_that_trainers_have(
    cancel: bool, reads: bool, place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
):
    """They have these from an earlier process; a number that is out of reach delays nothing.

    The next process, which may read larger chunks, makes the same ones.
    """
    monkeypatch.setattr(Intake, "limit", lambda self, most: 64)
    pipeline = numbered(1000).batch(10, dynamic_pad=True)
    here = place(pipeline)
    whole = play(here, here.begin())
    feed, saved = here.begin(), nothing_saved()
    assert feed.reclaim(Batch(0, 12, ANYONE, (0, 12), 10))
    assert not feed.reclaim(Batch(0, 10**6, ANYONE, (0, 10**6), 10))
    if reads:
        assert advance(feed) == [] and feed.reads_next
    assert feed.propose(("close", cancel)) is None, "it makes the batches up to 12 first"
    whole_slab = here.slab.allocate(here.slab.budget_bytes)
    assert whole_slab is not None
    order = ordered(feed, "close", cancel)
    assert order.since == 13
    here.slab.free(whole_slab)
    store(saved, feed)
    feed.apply(order)
    batches = play(here, feed, Outlook.IDLE)  # a trainer has batch 12
    whole.pop(12)
    assert batches == whole[: len(batches)] and 12 <= len(batches) < len(whole)
    monkeypatch.setattr(Intake, "limit", lambda self, most: 640)
    there = place(pipeline)
    again = there.begin()
    again.resume(saved)
    made = play(there, again)
    assert made[:12] + made[13:] == batches


def test_packed_examples_that_a_cancel_drops_are_counted_in_full_and_in_open_rows(
    place: Callable[..., Place],
):
    feed = place(hs.from_examples([{"x": [0] * n} for n in (4, 3, 2)]).pack(4, 2)).begin()
    while feed.sizes()["incomplete"] < 3:
        assert advance(feed) == []
    feed.apply(ordered(feed, "close", True))
    assert advance(feed) is Outlook.ENDED and feed.dropped() == {"cancelled": 3}


RESIZED: dict[str, tuple[Callable[[], Pipeline], list[list[int]]]] = {
    "plain": (lambda: numbered(700).batch(10, dynamic_pad=True), [[4], [25], [10]]),
    "the last batch is smaller": (
        lambda: (
            numbered(705)
            .shuffle(seed=4)
            .repeat(2)
            .batch(10, allow_smaller_final_batch=True, dynamic_pad=True)
        ),
        [[3], [7], [64]],
    ),
    "each epoch ends its batches": (
        lambda: numbered(250).repeat(3, across_batches=False).batch(8, dynamic_pad=True),
        [[5], [9], [2]],
    ),
    "buckets": (
        lambda: numbered(700).bucket_by_sequence_length(
            "v", [5, 6, 7], [1, 2], dynamic_pad=True, max_examples_in_flight=40
        ),
        [[9], [2, 3, 4], [12, 5, 1]],
    ),
    "a budget": (
        lambda: numbered(700).bucket_by_sequence_length(
            "v", None, [1], dynamic_pad=True, max_padded_elements=16
        ),
        [[3, 5], [8], [1]],
    ),
    "classes": (
        lambda: (
            numbered(700)
            .map(f"{__name__}:of_two_classes")
            .stratified_sample_unknown_dist("y", [0.3, 0.7], 6)
        ),
        [[2], [11], [6]],
    ),
    "packed rows": (lambda: numbered(700).pack(5, 4), [[2], [9], [3]]),
    "packed rows, balanced": (
        lambda: numbered(700).pack(5, 4, balance="i", balance_batches=3),
        [[2], [9], [3]],
    ),
    "a sampler": (
        lambda: (
            numbered(900)
            .map(f"{__name__}:of_two_classes")
            .stratified_sample("y", [0.3, 0.7], 6, init_probs=[0.5, 0.5])
        ),
        [[2], [11], [6]],
    ),
}


@pytest.mark.parametrize("name", RESIZED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=some(5))
@given(data=st.data())
def test_batches_of_other_sizes_are_made_again_by_the_next_process(
    name: str, data: st.DataObject, place: Callable[..., Place]
):
    """The stream does not depend on how much was read, made and committed before a change."""
    make, asked = RESIZED[name]
    here = place(make())
    feed, batches, saved, open_ = here.begin(), [], nothing_saved(), []
    for sizes in asked:
        for _ in range(data.draw(st.integers(0, 12))):
            made = advance(feed)
            assert isinstance(made, list)
            batches += [contents(here, one) for one in made]
            open_ += made
            feed._mark_here()
        while open_ and data.draw(st.booleans()):
            commit(here, feed, open_.pop(0))
        order = ordered(feed, "batch_size", sizes)
        assert order.since >= len(batches)
        feed.apply(order)
        again = ordered(feed, "batch_size", sizes)
        assert again.since >= order.since, "asked again"
        feed.apply(again)
        store(saved, feed)
    committed = len(batches) - len(open_)
    there = place(make())
    again = there.begin()
    again.resume(saved)
    assert committed or again.schema == feed.schema
    for made in open_:
        commit(here, feed, made)
    batches += play(here, feed)
    limit = data.draw(st.sampled_from([7, 40, 640]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Intake, "limit", lambda self, most: min(limit, most or limit))
        assert play(there, again) == batches[committed:] and again.dropped() == feed.dropped()
    assert again.properties == feed.properties


def test_a_change_is_refused_where_a_later_life_would_lack_an_earlier_one(
    place: Callable[..., Place],
):
    """It makes the batches again that are not committed, with the last 64 orders."""
    here = place(numbered(900).batch(4, dynamic_pad=True))
    feed, saved = here.begin(), nothing_saved()
    held = step(feed)
    for number in range(63):
        feed.apply(ordered(feed, "batch_size", [1 + number % 5]))
        commit(here, feed, step(feed), saved)
    with pytest.raises(
        ValueError, match=r"63 changes were made .*: commit batch 0, or change less"
    ):
        feed.propose(("batch_size", [7]))
    feed.apply(ordered(feed, "close", False))
    store(saved, feed)
    again = here.begin()
    again.resume(saved)
    repeated = step(again)
    assert contents(here, repeated) == contents(here, held)
    commit(here, feed, held)
    commit(here, again, repeated)
    assert play(here, again) == play(here, feed)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_learnt_also_where_filters_let_the_first_rows_not_through(
    stream: bool, place: Callable[..., Place], tmp_path: Path
):
    source = hs.read_jsonl(lines(tmp_path), {"i": hs.scalar("int64")}) if stream else numbered(200)
    pipeline = (
        source.options(on_bad_example="skip")
        .filter(f"{__name__}:from_150_on")
        .map(f"{__name__}:doubled")
        .batch(10)
    )
    here = place(pipeline)
    for partition in range(2):
        feed = here.begin(partition, 2)
        assert feed.schema == {"twice": Field("int64", (10,))}
        assert "bad:map_failed" not in feed.dropped() and "filtered" not in feed.dropped()


def test_rows_that_filters_never_let_through_are_not_waited_for_in_vain(
    place: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
):
    pipeline = numbered(500).filter(f"{__name__}:nothing").map(f"{__name__}:doubled").batch(10)
    here = place(pipeline)
    feed = here.begin()
    assert feed.schema == {}
    assert play(here, feed) == [] and feed.dropped() == {"filtered": 500}
    monkeypatch.setattr("headrace_server.reading.intake._MOST_PROBE_ROWS", 300)
    with pytest.raises(DataError, match=r"none of the first 448 examples through.*schema="):
        here.begin()


def test_damage_that_shows_at_opening_is_the_first_partitions_and_counted_once(
    place: Callable[..., Place], tmp_path: Path
):
    path = tmp_path / "bad.npz"
    path.write_bytes(b"this is no archive")
    good = tmp_path / "good.npz"
    np.savez(good, i=np.arange(50))
    pipeline = (
        hs.read_npz([str(path), str(good)], {"i": hs.scalar("int64")})
        .options(on_bad_example="skip")
        .map(f"{__name__}:odd_is_bad")
        .batch(1)
    )
    here = place(pipeline)
    feeds = [here.begin(k, 2) for k in range(2)]
    for feed in feeds:
        play(here, feed)
    assert [feed.dropped() for feed in feeds] == [
        {"bad:corrupt_file": 1, "bad:map_failed": 5},
        {"bad:map_failed": 5},
    ]


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_bad_records_of_a_stream_that_partitions_share_are_counted_once(
    partitions: int, place: Callable[..., Place], tmp_path: Path
):
    pipeline = (
        hs.read_jsonl(lines(tmp_path), {"i": hs.scalar("int64")})
        .options(on_bad_example="skip")
        .map(f"{__name__}:odd_is_bad")
        .batch(1)
    )
    here = place(pipeline)
    feeds = [here.begin(k, partitions) for k in range(partitions)]
    rows = sum(len(play(here, feed)) for feed in feeds)
    records = [i for i in range(200) if i % 9 != 4]
    failed = sum(i % 5 == 3 for i in records)
    assert rows == len(records) - failed
    dropped = [feed.dropped() for feed in feeds]
    assert [counts.pop("bad:corrupt_record", 0) for counts in dropped] == [22, 0, 0][:partitions]
    assert sum(counts["bad:map_failed"] for counts in dropped) == failed


def test_where_ranks_are_is_not_that_of_a_run_of_the_same_name_before(place: Callable[..., Place]):
    here = place(numbered(200).batch(5, dynamic_pad=True))
    feed, saved = here.begin(), nothing_saved()
    for rank in (1, 0):
        batches = feed.deal(0, 2)
        while len(batches) < 2:
            batches += feed.make(0, 0)
        commit(here, feed, batches[rank], saved)
    again = here.begin()
    again.resume(saved)
    assert [again.machine.next_turn(rank) for rank in (0, 1)] == [(0, 1), (0, 0)]


def test_the_costs_of_whole_rounds_alone_are_compared(place: Callable[..., Place]):
    """Of round 0 the second process makes the batch of one rank."""
    examples = [{"cost": 0.1} for _ in range(8)]
    here = place(hs.from_examples(examples).batch(2, balance="cost", balance_batches=1))
    feed, saved = here.begin(), nothing_saved()
    batches = feed.deal(1, 2)
    while not batches:
        batches += feed.make(0, 0)
        if feed.machine.input.next_number == 1:
            feed._mark_here()
    commit(here, feed, batches[0], saved)
    again = here.begin()
    again.resume(saved)
    batches = []
    while len(batches) < 3:
        batches += again.make(0, 0)
    assert [(batch.slot, batch.turn) for batch in batches] == [
        (1, (0, 0)),
        (0, (0, 1)),
        (1, (0, 1)),
    ]
    assert again.status()["balance"] == {"rounds": 1, "mean": 1, "worst": 1}
