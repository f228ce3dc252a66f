"""A pipeline is declared by calls; those that are refused are in tests/unit/refusals."""

import copy
import pickle

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import convertible

FEATURES = {"x": hs.scalar("int64"), "audio": hs.sequence("float32", (64,))}


def widen(example):
    return example


def drawn(example, rng):
    return example


def rows():
    return [{"x": 1}]


def source(path="/data/a-*.tfrecord"):
    return hs.read_tfrecord(path, FEATURES)


def mixed():
    some = source("/data/a").skip(1).shuffle(seed=3).repeat(2)
    weights = [(0, {"a": 1, "b": 1}), (9, {"a": 2, "b": 0})]
    return hs.mix({"a": some, "b": source("/data/b")}, weights)


def joined():
    other = hs.from_function(rows, features=FEATURES)
    joined = source("/data/a").take(3).concat(other).concat(hs.read_jsonl("/data/b", FEATURES))
    return joined.skip(1)


@pytest.mark.parametrize(
    "pipeline",
    [
        (
            hs.from_examples([{"x": 1, "t": b"a"}, {"x": 2, "t": b"bc"}])
            .shuffle(3, window=10)
            .repeat(np.int64(2))
            .map(widen, schema={"x": hs.sequence("float32"), "y": Field("bytes", (None, 2, None))})
            .filter("pkg.mod:Class.keep")
            .select(("y",))
            .batch(np.int32(4), True, dynamic_pad=True)
            .options(on_bad_example="skip", max_bad_examples=5)
        ),
        mixed().map(widen).batch(2),
        joined().map(widen).batch(2),
    ],
    ids=["examples", "mix", "joined"],
)
def test_a_whole_declaration_survives_the_wire(pipeline):
    declared = pipeline.declaration()
    again = pickle.loads(pickle.dumps(declared))  # noqa: S301 - our own
    assert again == declared and again.to_plain() == declared.to_plain()
    assert copy.deepcopy(pipeline) == pipeline


def test_sources_of_sources_name_all_their_files_and_kinds():
    declared = mixed().batch(2, dynamic_pad=True).declaration()
    assert declared.source.paths == ("/data/a", "/data/b")
    assert declared.stages[0].options["schedule"] == [[0, [1.0, 1.0]], [9, [2.0, 0.0]]]
    assert mixed().fields == joined().fields == source().fields
    assert repr(mixed()).startswith("mix(sources={'a': read_tfrecord(")
    declared = joined().batch(2, dynamic_pad=True).declaration()
    assert declared.source.paths == ("/data/a", "/data/b")
    assert declared.source.kinds == "tfrecord and function and jsonl"
    assert repr(joined()).count("concat(other=") == 2


def test_pipelines_that_declare_the_same_are_equal_and_hash_alike():
    one, two = source().map(widen).batch(2), source().map(widen).batch(2)
    assert one == two
    assert hash(one) == hash(two)
    assert one != source().map(widen).batch(3)
    assert one != source().map(widen, vectorized=True).batch(2)
    assert one != "pipeline"


def test_the_text_of_a_pipeline_shows_what_was_declared():
    text = repr(
        source()
        .shuffle(seed=0)
        .repeat()
        .map("m:f", schema={"y": hs.scalar("bool")})
        .batch(32)
        .options(on_bad_example="skip")
    )
    lines = text.splitlines()
    features = "{'audio': float32[?, 64], 'x': int64[]}"
    assert lines[0] == f"read_tfrecord(paths='/data/a-*.tfrecord', features={features})"
    assert lines[1:] == [
        "  .shuffle(seed=0)",
        "  .repeat()",
        "  .map(fn='m:f', schema={'y': bool[]})",
        "  .batch(batch_size=32)",
        "  .options(on_bad_example='skip')",
    ]


# Calls that declare what others declare


def test_take_and_skip_count_the_same_examples_before_and_after_a_map():
    after = source().map(widen).skip(2).take(3).batch(2).declaration()
    assert after == source().skip(2).take(3).map(widen).batch(2).declaration()


def test_a_sampler_with_a_batch_size_ends_the_pipeline():
    short = source().stratified_sample("x", [0.5, 0.5], 4, dynamic_pad=True)
    assert short == source().stratified_sample("x", [0.5, 0.5]).batch(4, dynamic_pad=True)
    for given in (
        {"dynamic_pad": True, "pad_to_multiple": 8, "pad_to": {"audio": 9}},
        {"ragged": True, "allow_smaller_final_batch": True},
    ):
        short = source().rejection_sample(0.5, 4, seed=3, **given)
        assert short == source().rejection_sample(0.5, seed=3).batch(4, **given)


def test_enqueue_many_is_unbatch_before_the_sampler():
    source = hs.read_tfrecord("/data/a", {"x": hs.sequence("int64")})
    for name, arguments in {
        "stratified_sample": ("x", [0.5, 0.5], 4),
        "stratified_sample_unknown_dist": ("x", [0.5, 0.5], 4),
        "rejection_sample": ("x", 4),
    }.items():
        many = getattr(source, name)(*arguments, enqueue_many=True, seed=3)
        assert many == getattr(source.unbatch(), name)(*arguments, seed=3)


# Shapes and schemas that follow from a declaration


def test_a_group_is_that_of_a_weighted_resampling_and_fits_what_the_shape_lets_in():
    drawing = source().map(drawn, vectorized=True, seed=8)
    weighted = drawing.map(widen).weighted_resample("x", 1.0, group=8).batch(4).declaration()
    assert [stage.options.get("group") for stage in weighted.stages] == [8, None, 8]
    bucketed = drawing.bucket("x", 4, 3, bucket_capacities=[9, 9, 9], dynamic_pad=True)
    assert bucketed.declaration().stages[0].options["group"] == 9


def test_stages_up_to_the_first_that_draws_by_chance_can_be_in_files():
    rows = hs.read_tfrecord("/data/a", {"x": hs.sequence("int64")}).unbatch().flat_map(widen)
    before, after = convertible(rows.map(drawn, seed=7).map(widen).batch(1).declaration().stages)
    assert [stage.kind for stage in before] == ["unbatch", "flat_map"]
    assert [stage.kind for stage in after] == ["map", "map"]
