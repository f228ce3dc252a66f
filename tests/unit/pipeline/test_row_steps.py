"""Stages over single examples are declared; a wrong call raises at once."""

from __future__ import annotations

import pytest

import headrace_server as hs
from headrace_server.pipeline.declaration import convertible


def one(example):
    return example


def two(example, rng):
    return example


def source():
    features = {"x": hs.sequence("int64"), "m": hs.fixed("float32", (4, 2))}
    return hs.read_tfrecord("/data/a", features)


def test_a_group_is_that_of_a_weighted_resampling_and_fits_what_the_shape_lets_in():
    drawing = source().map(two, vectorized=True, seed=8)
    weighted = drawing.map(one).weighted_resample("x", 1.0, group=8).batch(4).declaration()
    assert [stage.options.get("group") for stage in weighted.stages] == [8, None, 8]
    bucketed = drawing.bucket("x", 4, 3, bucket_capacities=[9, 9, 9], dynamic_pad=True)
    assert bucketed.declaration().stages[0].options["group"] == 9


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p: p.batch(1).flat_map(one), ValueError, "the shape ends a pipeline"),
        (lambda p: p.batch(1).unbatch(), ValueError, "the shape ends a pipeline"),
        (lambda p: p.unbatch().unbatch(), ValueError, "enqueue_many=True.: column 'x' is int64"),
        (lambda p: p.unbatch().select(["y"]), ValueError, "'y' is not one of the columns x, m"),
        (
            lambda p: p.stratified_sample("x", [1], enqueue_many=1),
            TypeError,
            "enqueue_many=1 is an int; it is True or False",
        ),
    ],
)
def test_a_wrong_call_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(source())


def test_enqueue_many_is_unbatch_before_the_sampler():
    for name, arguments in {
        "stratified_sample": ("x", [0.5, 0.5], 4),
        "stratified_sample_unknown_dist": ("x", [0.5, 0.5], 4),
        "rejection_sample": ("x", 4),
    }.items():
        many = getattr(source(), name)(*arguments, enqueue_many=True, seed=3)
        assert many == getattr(source().unbatch(), name)(*arguments, seed=3)


def test_stages_up_to_the_first_that_draws_by_chance_can_be_in_files():
    declared = source().unbatch().flat_map(one).map(two, seed=7).map(one).batch(1).declaration()
    before, after = convertible(declared.stages)
    assert [stage.kind for stage in before] == ["unbatch", "flat_map"]
    assert [stage.kind for stage in after] == ["map", "map"]
