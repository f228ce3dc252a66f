"""Segments with states are declared; calls that are refused are in tests/unit/refusals."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.pipeline.segment_options import fitted

FEATURES = {
    "utt": hs.scalar("string"),
    "audio": hs.sequence("float32", (64,)),
    "flags": hs.sequence("bool"),
    "twelve": hs.fixed("int32", (12, 2)),
    "label": hs.scalar("int64"),
    "start": hs.fixed("float16", (2, 8)),
}
#: Arguments without which there is no shape.
LEAST = {
    "input_key": "utt",
    "input_sequences": ["audio"],
    "input_context": ["label"],
    "initial_states": {"lstm": hs.zeros((2, 256)), "seen": "start"},
    "num_unroll": 20,
    "batch_size": 32,
}


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def unknown():
    return source().map("pkg.mod:f")


def batch(pipeline=None, **arguments):
    return (pipeline or source()).batch_sequences_with_states(**{**LEAST, **arguments})


def options(pipeline):
    shape = pipeline.declaration().shape
    assert shape.kind == "sequences"
    return shape.options


def test_the_key_may_be_left_out_of_the_columns():
    given = {name: value for name, value in LEAST.items() if name != "input_key"}
    assert options(source().batch_sequences_with_states(**given))["input_key"] is None


@pytest.mark.parametrize("name", ["audio", "flags", "twelve", "label", "start"])
def test_a_sequence_serves_where_its_length_counts(name):
    assert options(batch(input_length=name))["input_length"] == ["column", name]


def test_a_constant_is_in_little_endian_bytes_in_c_order():
    turned = np.array([[1, 2], [3, 4]], ">u2").T
    (state,) = options(batch(initial_states={"s": turned}))["initial_states"]
    assert (state["dtype"], state["shape"]) == ("uint16", [2, 2])
    assert state["value"] == bytes([1, 0, 3, 0, 2, 0, 4, 0])


def test_packed_lanes_are_plain_data_that_other_shapes_do_not_have():
    least = {"order": "lanes", "pack": True, "initial_states": {}}
    assert options(batch(**least, stride=20))["pack"] is True
    assert "pack" not in options(batch())


def test_segments_may_be_wider_than_a_fixed_number_of_steps_where_they_are_padded():
    assert options(batch(input_sequences=["twelve"], num_unroll=5))["pad"]


def test_a_schema_that_comes_later_completes_what_was_declared_or_refuses_it():
    early, late = options(batch()), options(batch(unknown()))
    brought = late["initial_states"][1]
    assert (brought["dtype"], brought["shape"]) == (None, None)
    assert fitted(late, source().fields) == early
    assert (brought["dtype"], brought["shape"]) == (None, None)
    for wrong in (
        {"input_key": "flags"},
        {"input_sequences": ["label"]},
        {"input_context": ["audio"]},
        {"initial_states": {"h": "x"}},
    ):
        declared = options(batch(unknown(), **wrong))
        with pytest.raises((TypeError, ValueError)) as late_error:
            fitted(declared, source().fields)
        with pytest.raises((TypeError, ValueError)) as error:
            batch(**wrong)
        assert str(late_error.value) == str(error.value)


def test_lanes_may_have_no_states():
    without = batch(initial_states={}, order="lanes")
    declared = options(without)
    assert declared["initial_states"] == [] and declared["state_placement"] == "server"
    assert "initial_states={}" in repr(without).splitlines()[-1]
