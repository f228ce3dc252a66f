"""Batches of any geometry equal those of a slow reference, step by step."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_server.leasing.protocol import Outlook
from headrace_server.pipeline.builder import Pipeline
from tests.examples import some
from tests.unit.changes import Model
from tests.unit.segment_player import Player, Taken

SCHEMA = {
    "k": hs.scalar("bytes"),
    "x": hs.sequence("int64", (2,)),
    "long": hs.sequence("float32", (700,)),
    "on": hs.sequence("bool"),
    "word": hs.sequence("bytes", (2,)),
    "n": hs.scalar("int64"),
}
#: Arguments: num_unroll, stride, left, right, whether the first segment is drawn.
Cut = tuple[int, int, int, int, bool]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    unroll = draw(st.integers(1, 5))
    stride = draw(st.integers(1, unroll))
    left, right = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    return unroll, stride, left, right, draw(st.booleans())


def example(number: int, steps: int, total: int) -> dict[str, Any]:
    """Its steps are 1000 * number + 1, and so on: none is 0."""
    values = 1000 * number + np.arange(steps) + 1
    return {
        "k": b"k%d" % number,
        "x": np.stack([values, -values], 1),
        "long": np.repeat(values.astype(np.float32)[:, None], 700, 1),
        "on": np.ones(steps, bool),
        "word": [[b"%d" % value, b"w" * (value % 5 + 1)] for value in values.tolist()],
        "n": total,
    }


def declared(examples: list[dict[str, Any]], cut: Cut, **more: Any) -> Pipeline:
    unroll, stride, left, right, phased = cut
    return hs.from_examples(examples, SCHEMA).batch_sequences_with_states(
        "k",
        more.pop("names", ["x", "on", "word"]),
        [],
        more.pop("length", None),
        more.pop("states", {"s": hs.zeros((1,), "int64")}),
        unroll,
        more.pop("batch_size", 2),
        stride=stride,
        left=left,
        right=right,
        phase="random" if phased else None,
        **more,
    )


def expected(values: list[Any], blank: Any, cut: Cut, segment: int, first: int | None) -> list[Any]:
    """A row of a batch, step by step; ``first`` is the drawn number of steps of segment 0."""
    unroll, stride, left, right, _ = cut
    begin, size = segment * stride, unroll
    if first is not None:
        begin, size = (first + (segment - 1) * stride, unroll) if segment else (0, first)

    def step(at: int) -> Any:
        return values[at] if 0 <= at < len(values) else blank

    own = [step(begin + i) if i < size else blank for i in range(unroll)]
    before = [step(begin - left + i) for i in range(left)]
    return before + own + [step(begin + size + i) for i in range(right)]


def check(taken: Taken, cut: Cut, examples: list[dict[str, Any]], firsts: dict[Any, int]) -> None:
    """The batch against its definition.  ``firsts`` collects what was drawn, by epoch and key."""
    unroll, stride, left, right, phased = cut
    assert ("@left_length" in taken.columns, "@right_length" in taken.columns) == (
        left > 0,
        right > 0,
    )
    for row, (key, segment, count) in enumerate(taken.rows):
        source = examples[int(key[1:])]
        steps, total = len(source["on"]), int(taken["@total_length"][row])
        name = key, int(taken["@insertion_index"][row])
        first = None
        if phased:
            if not segment:
                drawn = np.count_nonzero(taken["sequences:x"][row, left : left + unroll, 0])
                firsts[name] = drawn if drawn < steps else stride  # beyond the end it is not seen
            first = firsts[name]
            assert 1 <= first <= stride
        for column, blank in (("x", [0, 0]), ("on", False), ("word", [b"", b""])):
            if f"sequences:{column}" in taken.columns:
                values = np.asarray(source[column]).tolist()
                wanted = expected(values, blank, cut, segment, first)
                assert taken[f"sequences:{column}"][row].tolist() == wanted
        marks = [i < min(total, steps) for i in range(steps)]
        real = expected(marks, False, cut, segment, first)
        assert taken["@length"][row] == sum(real[left : left + unroll])
        assert not left or taken["@left_length"][row] == sum(real[:left])
        assert not right or taken["@right_length"][row] == sum(real[left + unroll :])
        reached = unroll if not phased else (first or 0) if not segment else unroll
        begin = segment * stride if first is None or not segment else first + (segment - 1) * stride
        assert (begin + reached >= steps) == (segment + 1 == count)


def counting(taken: Taken) -> dict[str, np.ndarray]:
    """Return states that count the segments before."""
    assert taken["state:s"][:, 0].tolist() == taken["@sequence"].tolist()
    return {"s": taken["state:s"] + 1}


@settings(max_examples=some(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts(),
    st.lists(st.integers(1, 17), min_size=1, max_size=7),
    st.sampled_from(["arrival", "lanes"]),
    st.booleans(),
)
def test_every_step_is_where_it_is_declared_to_be(
    tmp_path_factory: pytest.TempPathFactory, cut: Cut, steps: list[int], order: str, twice: bool
):
    examples = [example(i, count, count) for i, count in enumerate(steps)]
    pipeline = declared(examples, cut, order=order)
    if twice:
        pipeline = declared_twice(examples, cut, order)
    player = Player(pipeline, tmp_path_factory.mktemp("windows"))
    batches, end = player.play(counting)
    assert end is Outlook.ENDED
    firsts: dict[Any, int] = {}
    shown: dict[Any, list[int]] = defaultdict(list)
    for taken in batches:
        check(taken, cut, examples, firsts)
        for row, (key, segment, _) in enumerate(taken.rows):
            shown[key, int(taken["@insertion_index"][row])].append(segment)
    assert len(shown) == len(steps) * (1 + twice)
    assert all(segments == list(range(len(segments))) for segments in shown.values())


def declared_twice(examples: list[dict[str, Any]], cut: Cut, order: str) -> Pipeline:
    source = hs.from_examples(examples, SCHEMA).repeat(2)
    unroll, stride, left, right, phased = cut
    return source.batch_sequences_with_states(
        input_key="k",
        input_sequences=["x", "on", "word"],
        input_context=[],
        initial_states={"s": hs.zeros((1,), "int64")},
        num_unroll=unroll,
        batch_size=2,
        order=order,  # type: ignore[arg-type]
        stride=stride,
        left=left,
        right=right,
        phase="random" if phased else None,
    )


@settings(max_examples=some(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts(),
    st.lists(st.tuples(st.integers(1, 12), st.integers(-2, 12)), min_size=1, max_size=5),
    st.sampled_from([("arrival", "server"), ("lanes", "server"), ("lanes", "trainer"), None]),
    st.integers(0, 2**32),
)
def test_it_goes_on_exactly_after_any_step(
    tmp_path_factory: pytest.TempPathFactory,
    cut: Cut,
    pairs: list[tuple[int, int]],
    kind: tuple[str, str] | None,
    seed: int,
):
    """A worker that dies after each commit makes what one makes that lives."""
    examples = [example(i, steps, min(steps, total)) for i, (steps, total) in enumerate(pairs)]
    order, placement = kind or ("lanes", "server")
    states = {"s": hs.zeros((1,), "int64")} if kind else {}
    pipeline = declared(
        examples, cut, length="n", states=states, order=order, state_placement=placement
    )
    directory = tmp_path_factory.mktemp("windows")
    model, firsts, seen = Model(), dict[Any, int](), []
    player = Player(pipeline, directory)
    while True:
        taken = player.take()
        if not isinstance(taken, Taken):
            assert taken is Outlook.ENDED
            break
        check(taken, cut, examples, firsts)
        kept = kind is not None and placement == "server"
        assert player.save(taken, counting(taken) if kept else {}) is None
        going = [i for i, (_, segment, count) in enumerate(taken.rows) if segment + 1 < count]
        if placement == "trainer" and going:
            player.flush(taken, going, {"s": np.zeros((len(going), 1), np.int64)})
        seen += [row[:2] for row in taken.rows]
        for change in player.feed.take_records():
            model.apply(change)
        player = Player(pipeline, directory)
        player.feed.resume(model.saved)
    assert len(seen) == len(set(seen))
    assert {key for key, _ in seen} == {one["k"] for one in examples}


@pytest.mark.parametrize("phased", [False, True])
def test_long_windows_and_windows_longer_than_a_chunk_are_whole(phased: bool, tmp_path: Path):
    cut = (4, 3, 3, 2, phased)
    examples = [example(i, steps, steps) for i, steps in enumerate([1, 9, 20, 4])]
    player = Player(declared(examples, cut, names=["x", "long"]), tmp_path)
    batches, end = player.play(counting)
    firsts: dict[Any, int] = {}
    assert end is Outlook.ENDED
    for taken in batches:
        check(taken, cut, examples, firsts)
        of_long = taken["sequences:long"]
        assert (of_long == taken["sequences:x"][:, :, :1]).all()


def test_first_segments_are_drawn_for_each_example_and_epoch_and_from_the_seed(tmp_path: Path):
    examples = [example(i, 40, 40) for i in range(200)]

    def drawn(seed: int | None, batch_size: int = 200) -> list[int]:
        source = hs.from_examples(examples, SCHEMA).repeat(2)
        pipeline = source.batch_sequences_with_states(
            input_key="k",
            input_sequences=["x"],
            input_context=[],
            initial_states={"s": hs.zeros((1,), "int64")},
            num_unroll=10,
            batch_size=batch_size,
            stride=8,
            phase="random",
            phase_seed=seed,
        )
        batches, _ = Player(pipeline, tmp_path).play(counting)
        found = {}
        for taken in batches:
            for row in np.flatnonzero(taken["@sequence"] == 0).tolist():
                found[int(taken["@insertion_index"][row])] = int(taken["@length"][row])
        return [found[index] for index in sorted(found)]

    firsts = drawn(7)
    assert set(firsts) == set(range(1, 9)) and min(map(firsts.count, range(1, 9))) > 20
    assert firsts[:200] != firsts[200:], "epochs differ"
    assert drawn(7, batch_size=3) == firsts and drawn(8) != firsts
    assert drawn(None) == drawn(0)
