"""From chunks to examples that can be cut: bad ones are reported, counted and left out whole."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_server.leasing.words import Outlook
from headrace_server.pipeline.builder import Pipeline
from headrace_server.shaping.spans import Cut
from tests.unit.segment_player import Player, Taken, same_states

FEATURES = {
    "k": hs.scalar("bytes"),
    "x": hs.sequence("float32", (2,)),
    "z": hs.sequence("int64"),
    "n": hs.scalar("int64"),
}
LEAST: dict[str, Any] = {
    "input_key": "k",
    "input_sequences": ["x", "z"],
    "input_context": ["n"],
    "initial_states": {"s": hs.zeros((1,))},
    "num_unroll": 2,
    "batch_size": 3,
}
#: Columns by which a bad example differs from a sound one, the error and its reason; all rules are
#: in tests/unit/refusals.
SOUND = {"steps": 4, "others": 4, "n": 4}
RULES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unequal lengths": (
        {"others": 3},
        r"record 3.*unequal lengths: 'x' has 4 steps, 'z' has 3",
        "unequal_lengths",
    ),
    "duplicate keys": (
        {"k": b"k2"},
        r"record 3.*'k' \(input_key\) is b'k2', and an example of this key is in flight.*_unique=",
        "duplicate_key",
    ),
}


def example(number: int, **other: Any) -> dict[str, Any]:
    made = {**SOUND, "k": b"k%d" % number, **other}
    steps, others = made["steps"], made["others"]
    return {
        "k": made["k"],
        "x": np.full((steps, 2), number, np.float32),
        "z": np.full(others, number, np.int64),
        "n": made["n"],
    }


def source(bad: dict[str, Any], where: tuple[int, ...] = (3,), n: int = 8) -> Pipeline:
    rows = [example(i, **(bad if i in where else {})) for i in range(n)]
    return hs.from_examples(rows, FEATURES)


def keys_of(batches: list[Taken]) -> list[bytes]:
    return [key for taken in batches for key, segment, _ in taken.rows if not segment]


@pytest.mark.parametrize("name", RULES)
def test_an_example_that_breaks_a_rule_is_named_or_skipped_counted_and_logged(
    name, tmp_path, caplog
):
    bad, text, reason = RULES[name]
    strict = source(bad).batch_sequences_with_states(**LEAST)
    with pytest.raises(DataError, match=f"^examples, {text}"):
        Player(strict, tmp_path).take()
    where = (3,) if "k" in bad else (0, 3, 7)
    pipeline = source(bad, where).options(on_bad_example="skip")
    player = Player(pipeline.batch_sequences_with_states(**LEAST), tmp_path)
    with caplog.at_level(logging.WARNING, "headrace.data"):
        batches, end = player.play(same_states)
    assert end is Outlook.ENDED
    assert player.feed.dropped() == {f"bad:{reason}": len(where)}
    sound = [i for i in range(8) if i not in where]
    assert keys_of(batches) == [b"k%d" % i for i in sound]
    indices = [taken["@insertion_index"] for taken in batches]
    assert len({int(i) for of_batch in indices for i in of_batch}) == len(sound)
    assert max(map(max, indices)) - min(map(min, indices)) == len(sound) - 1, "none is burnt"
    for taken in batches:
        for row, (key, _, _) in enumerate(taken.rows):
            number = int(key[1:])
            assert (taken["sequences:x"][row] == number).all()
            assert (taken["sequences:z"][row] == number).all()
            assert taken["context:n"][row] == taken["@total_length"][row] == 4
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == len(where) and all("skipped: " in line for line in logged)


# Keys


def uniquely(pipeline: Pipeline, directory: Path, seed: int | None = None, **more: Any) -> Any:
    arguments = {**LEAST, "make_keys_unique": True, "make_keys_unique_seed": seed, **more}
    player = Player(pipeline.batch_sequences_with_states(**arguments), directory)
    return keys_of(player.play(same_states)[0])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint16", "uint64"])
def test_the_key_of_an_integer_is_its_decimal_digits(tmp_path, dtype):
    limits = np.iinfo(dtype)
    numbers = [limits.min, limits.max, 7, 10]
    rows = [{**example(i), "k": np.array(number, dtype)} for i, number in enumerate(numbers)]
    features = {**FEATURES, "k": hs.scalar(dtype)}
    pipeline = hs.from_examples(rows, features).batch_sequences_with_states(**LEAST)
    batches, _ = Player(pipeline, tmp_path).play(same_states)
    assert keys_of(batches) == [str(number).encode() for number in numbers]


def test_without_a_key_the_number_of_the_example_is_its_key(tmp_path):
    arguments = {**LEAST, "input_key": None}
    rest = source({}).skip(2).select(["x", "z", "n"]).batch_sequences_with_states(**arguments)
    batches, _ = Player(rest, tmp_path).play(same_states)
    assert keys_of(batches) == [b"%d" % i for i in range(6)]
    copies = source({}).resample_at_rate(2.0, seed=1).batch_sequences_with_states(**arguments)
    keys = keys_of(Player(copies, tmp_path).play(same_states)[0])
    assert len(keys) == len(set(keys)) > 8, "copies have keys of their own"


def test_a_seed_gives_the_same_keys_for_all_sizes_and_another_seed_gives_others(tmp_path):
    keys = uniquely(source({}), tmp_path, 7)
    assert keys == uniquely(source({}), tmp_path, 7, batch_size=1, capacity=1)
    assert not set(keys) & set(uniquely(source({}), tmp_path, 8))
    assert uniquely(source({}), tmp_path) == uniquely(source({}), tmp_path, 0)


# What trainers are told


@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_the_wire_columns_and_properties_of_lanes(placement, tmp_path):
    arguments = {
        **LEAST,
        "order": "lanes",
        "state_placement": placement,
        "allow_small_batch": False,
        "initial_states": {"b": "n", "a": hs.zeros((2, 3), "bytes")},
    }
    feed = Player(source({}).batch_sequences_with_states(**arguments), tmp_path).feed
    at_trainer = placement == "trainer"
    wanted = {
        "@key": "bytes[3]",
        **{f"@{n}": "int32[3]" for n in ("sequence", "sequence_count", "length", "total_length")},
        "@insertion_index": "int64[3]",
        "@lane": "int32[3]",
        "sequences:x": "float32[3, 2, 2]",
        "sequences:z": "int64[3, 2]",
        "context:n": "int64[3]",
        **({"@starts": "int32[?]", "@state_of": "int32[?]"} if at_trainer else {}),
        "state:a": "bytes[?, 2, 3]" if at_trainer else "bytes[3, 2, 3]",
        "state:b": "int64[?]" if at_trainer else "int64[3]",
    }
    assert [(name, str(field)) for name, field in feed.schema.items()] == list(wanted.items())
    assert feed.properties == {
        "shape": "sequences",
        "num_unroll": 2,
        "batch_size": 3,
        "order": "lanes",
        "placement": placement,
        "states": [["a", "bytes", [2, 3]], ["b", "int64", []]],
    }


@pytest.mark.parametrize("steps", [1, 2**31 - 1])
def test_the_longest_example_is_counted(steps):
    many = np.array([steps])
    zero = np.array([0])
    assert Cut(1, 1).left(zero, many).tolist() == [steps]
    assert Cut(2**31 - 1, 1).left(zero, many).tolist() == [1]
    assert Cut(7, 1).left(zero, many).tolist() == [max(1, steps - 6)]
    assert Cut(7, 3).left(zero, many, np.array([3])).max() <= steps
