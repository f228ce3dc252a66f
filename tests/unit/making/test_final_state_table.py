"""Examples that begin where others ended, in one partition, and after any restart the same."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_server.making.partition_run import Done
from headrace_server.pipeline.builder import Pipeline
from tests.examples import some
from tests.unit.changes import Model
from tests.unit.segment_player import Player, Taken

SCHEMA = {"k": hs.scalar("bytes"), "x": hs.sequence("int64"), "own": hs.scalar("int64")}


def sessions(
    keys: list[bytes], steps: list[int], states: dict[str, Any], batch_size: int = 1, **more: Any
) -> Pipeline:
    rows = [
        {"k": key, "x": np.full(t, i + 1), "own": -i}
        for i, (key, t) in enumerate(zip(keys, steps, strict=True))
    ]
    return hs.from_examples(rows, SCHEMA).batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states=states,
        num_unroll=1,
        batch_size=batch_size,
        capacity=batch_size,
        **more,
    )


def summed(taken: Taken) -> dict[str, np.ndarray]:
    """States that add up all steps from wherever they began."""
    steps = taken["sequences:x"][:, 0]
    return {n[6:]: c + steps for n, c in taken.columns.items() if n.startswith("state:")}


def begun(batches: list[Taken], state: str = "s") -> list[int]:
    """The initial states of all examples, in their order."""
    return [
        int(taken[f"state:{state}"][row])
        for taken in batches
        for row, (_, segment, _) in enumerate(taken.rows)
        if not segment
    ]


ZERO = hs.zeros((), "int64")


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_an_example_starts_where_its_key_ended_and_a_new_key_at_the_default(
    order: str, tmp_path: Path
):
    keys, steps = [b"a", b"b", b"a", b"b", b"a"], [2, 1, 1, 3, 1]
    states = {"s": hs.final_state("s", default="own"), "t": ZERO}
    player = Player(sessions(keys, steps, states, order=order), tmp_path)
    batches, end = player.play(summed)
    assert end is Done
    # a: 0 + 1 + 1, then + 3; b: its own -1 + 2
    assert begun(batches) == [0, -1, 2, 1, 5] and begun(batches, "t") == [0] * 5
    assert player.feed.stats()["segments"] == {
        "in_flight": 0,
        "rewound": 0,
        "final_states": 2,
        "final_states_forgotten": 0,
        "final_states_expired": 0,
    }


def test_a_state_may_come_from_another_one_and_strings_are_carried_too(tmp_path: Path):
    states = {
        "s": hs.zeros((), "int64"),
        "after": hs.final_state("s", default=7),
        "said": hs.final_state("said", default=b""),
    }
    player = Player(sessions([b"a"] * 3, [1, 1, 1], states), tmp_path)

    def trained(taken: Taken) -> dict[str, np.ndarray]:
        said = np.array([text + b"x" for text in taken["state:said"].tolist()], object)
        return {**{n: summed_numbers(taken)[n] for n in ("s", "after")}, "said": said}

    batches, _ = player.play(trained)
    assert begun(batches, "s") == [0, 0, 0] and begun(batches, "after") == [7, 1, 2]
    assert [taken["state:said"].tolist() for taken in batches] == [[b""], [b"x"], [b"xx"]]


def summed_numbers(taken: Taken) -> dict[str, np.ndarray]:
    steps = taken["sequences:x"][:, 0]
    return {name: taken[f"state:{name}"] + steps for name in ("s", "after")}


def test_epochs_go_on_where_the_one_before_ended(tmp_path: Path):
    rows = [{"k": b"k%d" % i, "x": np.full(2, 1), "own": 0} for i in range(4)]
    pipeline = (
        hs.from_examples(rows, SCHEMA)
        .repeat(3)
        .batch_sequences_with_states(
            input_key="k",
            input_sequences=["x"],
            input_context=[],
            initial_states={"s": hs.final_state("s", default=ZERO)},
            num_unroll=1,
            batch_size=2,
            capacity=2,
        )
    )
    batches, _ = Player(pipeline, tmp_path).play(summed)
    assert begun(batches) == [0] * 4 + [2] * 4 + [4] * 4


def test_the_bound_and_the_age_end_what_is_kept(tmp_path: Path):
    keys = [b"a", b"b", b"c", b"a", b"b", b"c"]
    states = {"s": hs.final_state("s", default=ZERO, most=2)}
    player = Player(sessions(keys, [1] * 6, states), tmp_path)
    assert begun(player.play(summed)[0]) == [0] * 6
    counts = player.feed.stats()["segments"]
    assert counts["final_states"] == 2 and counts["final_states_forgotten"] == 4
    for max_age, wanted in ((2, [0] * 6), (3, [0, 0, 0, 1, 2, 3])):
        states = {"s": hs.final_state("s", default=ZERO, max_age=max_age)}
        player = Player(sessions(keys, [1] * 6, states), tmp_path)
        assert begun(player.play(summed)[0]) == wanted


def test_a_batch_that_was_prepared_begins_with_what_has_ended_since(tmp_path: Path):
    states = {"s": hs.final_state("s", default=ZERO)}
    player = Player(sessions([b"a", b"a", b"a"], [1, 1, 1], states), tmp_path)
    seen = []
    while isinstance(taken := player.take(), Taken):
        player.feed.prepare()  # the next batch, before this one is saved
        player.save(taken, summed(taken))
        seen += taken["state:s"].tolist()
    assert seen == [0, 1, 3]


def test_a_share_of_examples_starts_from_others_and_repeatably(tmp_path: Path):
    keys, steps = [b"k%d" % i for i in range(200)], [1] * 200

    def starts(probability: float, seed: int = 0, **more: Any) -> list[tuple[int, int]]:
        pool = {"probability": probability, "default": ZERO, "seed": seed}
        states = {"s": hs.from_pool("s", **pool, **more), "t": hs.from_pool("t", **pool, **more)}
        batches, end = Player(sessions(keys, steps, states), tmp_path).play(summed)
        assert end is Done
        return list(zip(begun(batches), begun(batches, "t"), strict=True))

    found = starts(0.25, size=20)
    assert all(one == other for one, other in found), "both states come from one example"
    assert found == starts(0.25, size=20) != starts(0.25, seed=1, size=20)
    assert 30 < sum(one > 0 for one, _ in found) < 70
    assert all(one == (0, 0) for one in starts(0.0))
    whole = starts(1.0, size=1)
    assert whole[0] == (0, 0) and [one for one, _ in whole[1:4]] == [1, 3, 6]


def test_a_pool_never_gives_a_key_its_own_state(tmp_path: Path):
    states = {"s": hs.from_pool("s", 1.0, default=ZERO, size=9)}
    player = Player(sessions([b"a"] * 4, [1] * 4, states), tmp_path)
    assert begun(player.play(summed)[0]) == [0] * 4


@settings(max_examples=some(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=12),
    st.sampled_from(["arrival", "lanes"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.none() | st.integers(0, 4),
    st.integers(0, 2**32),
)
def test_a_worker_that_dies_after_any_commit_goes_on_with_the_same_states(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, int]],
    order: str,
    most: int,
    size: int,
    max_age: int | None,
    seed: int,
):
    keys = [b"k%d" % key for key, _ in drawn]
    states = {
        "s": hs.final_state("s", default="own", most=most, max_age=max_age),
        "t": hs.from_pool("s", 0.5, default=ZERO, size=size),
    }
    pipeline = sessions(keys, [count for _, count in drawn], states, order=order)
    directory, random = tmp_path_factory.mktemp("carried"), Random(seed)
    wanted, _ = Player(pipeline, directory).play(summed)
    model, batches, player = Model(), list[Taken](), Player(pipeline, directory)
    stripe = 0
    while isinstance(taken := player.take(stripe), Taken):
        batches.append(taken)
        assert player.save(taken, summed(taken)) == ("", "")
        for change in player.feed.commits.take_changes():
            model.apply(change)
        if random.random() < 0.4:
            player = Player(pipeline, directory)
            player.feed.commits.resume(model.saved)
            assert player.feed.commits.take_changes() == []
    shown = [[taken[f"state:{name}"].tolist() for name in "st"] for taken in batches]
    assert shown == [[taken[f"state:{name}"].tolist() for name in "st"] for taken in wanted]
