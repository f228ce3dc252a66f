"""TensorFlow's class of the name: it takes the arguments, and ends pipelines with the shape."""

from typing import Any

import pytest

import headrace_server as hs

FEATURES = {"k": hs.scalar("bytes"), "x": hs.sequence("float32"), "n": hs.scalar("int64")}
LEAST: dict[str, Any] = {
    "batch_size": 4,
    "num_unroll": 2,
    "input_length": "n",
    "input_key": "k",
    "input_sequences": {"x": "x"},
    "input_context": {"length": "n"},
    "initial_states": {"s": 0.0},
}


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def test_a_saver_ends_a_pipeline_as_the_method_of_its_name_does():
    declared = source().sequence_queueing_state_saver(**LEAST)
    assert hs.SequenceQueueingStateSaver(**LEAST)(source()) == declared
    by_position = hs.SequenceQueueingStateSaver(*LEAST.values(), 9, True)
    assert by_position(source()) == source().sequence_queueing_state_saver(
        **LEAST, capacity=9, allow_small_batch=True
    )
    assert by_position(source()) == by_position(source())


def test_an_error_that_needs_no_column_is_raised_when_the_saver_is_made():
    with pytest.raises(ValueError, match="capacity=3 is too small"):
        hs.SequenceQueueingStateSaver(**LEAST, capacity=3)
    with pytest.raises(TypeError, match="has no argument name: "):
        hs.SequenceQueueingStateSaver(**LEAST, name="saver")
    saver = hs.SequenceQueueingStateSaver(**{**LEAST, "input_key": "n"})
    with pytest.raises(TypeError, match="input_key='n' is int64"):
        saver(source())
