"""The content of a W4 batch follows from its keys, and its states from the segment before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench import sequences, states

from .w4 import batch


def test_a_right_batch_passes_its_check():
    states.Check()(**batch())


def test_there_is_padding_in_the_batch_that_passes():
    assert batch()["length"].min() < states.UNROLL


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("length", "lengths of a batch"),
        ("context", "context of a batch"),
        ("x", "steps of a batch"),
        ("sequence", "lengths of a batch|steps of a batch"),
    ],
)
def test_a_column_that_is_wrong_in_one_place_does_not(name: str, complaint: str):
    wrong = batch()
    wrong[name].reshape(-1)[-1] += 1
    with pytest.raises(AssertionError, match=complaint):
        states.Check()(**wrong)


@pytest.mark.parametrize("name", list(states.STATES))
def test_a_state_that_is_a_step_old_does_not(name: str):
    wrong = batch()
    row = int(np.argmax(wrong["sequence"] > 0))
    wrong["states"][name][row] -= states.STATES[name]
    with pytest.raises(AssertionError, match=f"state '{name}'"):
        states.Check()(**wrong)


def test_padding_that_is_not_zero_does_not():
    wrong = batch()
    row = int(np.argmin(wrong["length"]))
    wrong["x"][row, -1, -1] = 1
    with pytest.raises(AssertionError, match="steps of a batch"):
        states.Check()(**wrong)


def test_an_example_that_is_twice_in_a_batch_does_not():
    wrong = batch()
    wrong["keys"][1] = wrong["keys"][0]
    with pytest.raises(AssertionError, match="not of 32 examples"):
        states.Check()(**wrong)


def test_so_many_batches_are_checked_and_no_more():
    check, right = states.Check(), batch()
    for _ in range(states.CHECKED):
        assert check.wanted
        check(**right)
    assert not check.wanted


@pytest.mark.parametrize("lanes", [False, True])
def test_two_states_are_declared_where_they_are_to_be(lanes: bool, tmp_path: Path):
    Path(sequences.tfrecord_file(tmp_path)).touch()
    options = states.pipeline(tmp_path, lanes).declaration().shape.options
    assert options["state_placement"] == ("trainer" if lanes else "server")
    assert [(s["name"], s["shape"]) for s in options["initial_states"]] == [
        ("a", [256]),
        ("b", [256]),
    ]
    assert (options["batch_size"], options["num_unroll"]) == (states.BATCH, states.UNROLL)
