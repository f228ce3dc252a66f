"""The sampling calls: a wrong call raises at once."""

import pytest

import headrace_server as hs

FEATURES = {
    "x": hs.scalar("int64"),
    "w": hs.scalar("float32"),
    "b": hs.scalar("bool"),
    "v": hs.sequence("float32"),
    "t": hs.scalar("bytes"),
}


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def test_a_sampler_with_a_batch_size_ends_the_pipeline():
    short = source().stratified_sample("x", [0.5, 0.5], 4, allow_smaller_final_batch=True)
    assert short == source().stratified_sample("x", [0.5, 0.5]).batch(4, True)
    for given in (
        {"dynamic_pad": True, "pad_to_multiple": 8, "pad_to": {"v": 9}},
        {"ragged": True, "allow_smaller_final_batch": True},
    ):
        short = source().rejection_sample(0.5, 4, seed=3, **given)
        assert short == source().rejection_sample(0.5, seed=3).batch(4, **given)
        rows = source().select(["x", "v"]).stratified_sample("x", [0.5, 0.5], 4, **given)
        assert rows == source().select(["x", "v"]).stratified_sample("x", [0.5, 0.5]).batch(
            4, **given
        )


BAD_PROBS = [
    ([0.5, 0.6], "sums to 1.1; it must sum to 1 within 1e-06"),
    ([0.5, 0.500002], "it must sum to 1 within 1e-06"),
    ([1.5, -0.5], r"\[1\]=-0.5; a probability is 0 or more"),
    ([], "sums to 0"),
    (0.5, r"has the shape \(\); it must be 1-D"),
    ([[0.5, 0.5]], r"has the shape \(1, 2\); it must be 1-D"),
    ("half", "is not one probability per class"),
    (None, "target_probs|probs"),
    ([0.5, [0.5]], "is not one probability per class"),
]


@pytest.mark.parametrize(("probs", "text"), BAD_PROBS)
def test_invalid_probabilities_are_refused_at_once(probs, text):
    with pytest.raises(ValueError, match=r"target_probs.*" + text):
        source().stratified_sample("x", probs, 4)
    with pytest.raises(ValueError, match=r"probs.*" + text):
        source().stratified_sample_unknown_dist("x", probs, 4)
    if probs is not None:
        with pytest.raises(ValueError, match=r"init_probs.*" + text):
            source().stratified_sample("x", [0.5, 0.5], 4, probs)


def test_unreachable_proportions_are_refused_at_once():
    with pytest.raises(ValueError, match=r"init_probs has 3 classes and target_probs 2"):
        source().stratified_sample("x", [0.5, 0.5], 4, [0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match=r"init_probs\[1\]=0 but target_probs\[1\]=0.5"):
        source().stratified_sample("x", [0.5, 0.5], 4, [1, 0])
    source().stratified_sample("x", [1, 0], 4, [1, 0])
    source().stratified_sample("x", [0.5, 0.5 + 9e-7], 4)


def stratified(**more):
    return source().stratified_sample(**{"labels": "x", "target_probs": [1], **more})


def unknown(**more):
    given = {"labels": "x", "probs": [1], "batch_size": 2, **more}
    return source().stratified_sample_unknown_dist(**given)


def rejection(**more):
    return source().rejection_sample(**{"accept_prob": 0.5, **more})


def at_rate(**more):
    return source().resample_at_rate(**{"rates": "w", **more})


def weighted(**more):
    return source().weighted_resample(**{"weights": "w", "overall_rate": 1, **more})


@pytest.mark.parametrize(
    ("declare", "arguments", "error", "text"),
    [
        (stratified, {"labels": "w"}, TypeError, "labels='w' is float32.*of integers"),
        (stratified, {"labels": "t"}, ValueError, "labels='t'.*one number per example"),
        (stratified, {"dynamic_pad": True}, ValueError, "dynamic_pad=True.*give batch_size"),
        (stratified, {"ragged": True}, ValueError, "ragged=True is an .* give batch_size"),
        (stratified, {"pad_to": {"v": 3}}, ValueError, "pad_to={'v': 3} is an .*give batch_size"),
        (
            rejection,
            {"ragged": True, "dynamic_pad": True, "batch_size": 2},
            ValueError,
            "leave out",
        ),
        (unknown, {"labels": "w"}, TypeError, "labels='w'.*of integers"),
        (unknown, {"max_examples_in_flight": 0}, ValueError, "max_examples_in_flight=0"),
        (rejection, {"accept_prob": "v"}, ValueError, "accept_prob='v'.*one number per example"),
        (rejection, {"allow_smaller_final_batch": True}, ValueError, "give batch_size"),
        (at_rate, {"rates": "t"}, ValueError, "rates='t'.*one number per example"),
        (weighted, {"mean_decay": 1, "warmup": None}, ValueError, "mean_decay=1 needs warmup"),
    ],
)
def test_a_mistake_names_argument_value_and_limit(declare, arguments, error, text):
    with pytest.raises(error, match=text):
        declare(**arguments)


def test_weighted_stages_of_different_groups_are_refused():
    source = hs.from_examples([{"w": 1.0}]).weighted_resample("w", 1.0, group=4)
    with pytest.raises(ValueError, match=r"groups of \[4, 8\]"):
        source.weighted_resample("w", 1.0).batch(8)
