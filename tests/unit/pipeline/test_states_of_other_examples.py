"""Initial states from other examples are declared with a default; errors name the limit."""

import msgpack
import numpy as np
import pytest

import headrace_server as hs
from headrace_server.pipeline.initial_states import by_key

FEATURES = {
    "k": hs.scalar("bytes"),
    "x": hs.sequence("float32"),
    "own": hs.fixed("float32", (2,)),
}


def batch(states, **more):
    source = hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)
    return source.batch_sequences_with_states(
        "k", ["x"], [], initial_states=states, num_unroll=2, batch_size=3, **more
    )


def states_of(pipeline):
    return pipeline.declaration().shape.options["initial_states"]


def test_a_carried_state_is_its_default_and_how_it_is_carried():
    zeros = hs.zeros((2,))
    (one,) = states_of(batch({"h": hs.final_state("h", default=zeros, most=5, max_age=9)}))
    assert one["carry"] == {"by": "final_state", "of": "h", "most": 5, "max_age": 9}
    assert (one["kind"], one["dtype"], one["shape"]) == ("zeros", "float32", [2])
    declared = batch({"c": hs.from_pool("h", 0.25, default="own"), "h": zeros})
    first, second = states_of(declared)
    carry = {"by": "from_pool", "of": "h", "probability": 0.25, "size": 1000, "seed": 0}
    assert first["carry"] == carry and "carry" not in second
    assert (first["kind"], first["dtype"], first["value"]) == ("column", "float32", "own")
    plain = declared.declaration().to_plain()
    assert hs.Declaration.from_plain(msgpack.unpackb(msgpack.packb(plain))).to_plain() == plain


def test_its_text_is_the_call_that_declares_it():
    text = repr(batch({"h": hs.final_state("h", default=np.ones(2, np.float32))}))
    assert "'h': final_state('h', default=float32[2], most=10000, max_age=None)" in text
    text = repr(batch({"h": hs.from_pool("h", 1, default=hs.zeros((2,)), size=3, seed=-1)}))
    assert (
        "from_pool('h', default=zeros((2,), 'float32'), probability=1.0, size=3, seed=-1)" in text
    )


Z = hs.zeros((2,))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: hs.final_state("h"), TypeError, "default"),
        (lambda: hs.final_state(3, default=Z), TypeError, "name=3 is an int"),
        (lambda: hs.final_state("", default=Z), ValueError, "name='' has 0 characters"),
        (lambda: hs.final_state("h", default=Z, most=0), ValueError, "most=0 is too small"),
        (lambda: hs.final_state("h", default=Z, most=None), TypeError, "most=None is a NoneType"),
        (lambda: hs.final_state("h", default=Z, max_age=-1), ValueError, "max_age=-1 is too small"),
        (lambda: hs.final_state("h", default=Z, max_age=1.5), TypeError, "max_age=1.5 is a float"),
        (lambda: hs.from_pool("h", default=Z), TypeError, "probability"),
        (lambda: hs.from_pool("h", 0.5), TypeError, "default"),
        (lambda: hs.from_pool("h", 1.1, default=Z), ValueError, "probability=1.1 does not lie in"),
        (lambda: hs.from_pool("h", float("nan"), default=Z), ValueError, "probability=nan does"),
        (lambda: hs.from_pool("h", True, default=Z), TypeError, "probability=True is a bool"),
        (lambda: hs.from_pool("h", "x", default=Z), TypeError, "probability='x' is a str"),
        (lambda: hs.from_pool("h", 0.5, default=Z, size=0), ValueError, "size=0 is too small"),
        (
            lambda: hs.from_pool("h", 0.5, default=Z, size=10**7),
            ValueError,
            "size=10000000 is too l",
        ),
        (lambda: hs.from_pool("h", 0.5, default=Z, seed=0.5), TypeError, "seed=0.5 is a float"),
    ],
)
def test_a_mistake_of_a_call_names_argument_value_and_limit(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    ("states", "more", "error", "text"),
    [
        (
            {"h": hs.final_state("g", default=Z)},
            {},
            ValueError,
            r"initial_states\['h'\]=final_state\('g'\): there is no such state, only h",
        ),
        (
            {"h": hs.final_state("c", default=Z), "c": hs.zeros((3,))},
            {},
            ValueError,
            r"is float32\[2\] by its default, and that state is float32\[3\]",
        ),
        (
            {"h": hs.from_pool("c", 0.5, default="own"), "c": hs.zeros((3,))},
            {},
            ValueError,
            r"is float32\[2\] by its default, and that state is float32\[3\]",
        ),
        (
            {"h": hs.final_state("h", default=Z)},
            {"order": "lanes", "state_placement": "trainer"},
            ValueError,
            "needs state_placement='server': final states that stay with trainers never come",
        ),
        (
            {"h": hs.final_state("h", default=Z), "c": hs.final_state("c", default=Z, most=5)},
            {},
            ValueError,
            r"final_state\('h'\) has most=10000, max_age=None, unlike initial_states\['c'\]",
        ),
        (
            {"h": hs.from_pool("h", 1, default=Z), "c": hs.from_pool("c", 1, default=Z, size=5)},
            {},
            ValueError,
            r"from_pool\('h'\) has size=1000, unlike",
        ),
        (
            {"h": hs.final_state("h", default=Z)},
            {"make_keys_unique": True},
            ValueError,
            "make_keys_unique=True makes each key one of its own, and final_state looks",
        ),
        (
            {"h": hs.final_state("h", default=None)},
            {},
            TypeError,
            r"initial_states\['h'\]: default=None is a NoneType",
        ),
        (
            {"h": hs.final_state("h", default=hs.from_pool("h", 1, default=Z))},
            {},
            TypeError,
            "default=.* of final_state is carried itself",
        ),
    ],
)
def test_conflicting_states_are_refused_when_they_are_declared(states, more, error, text):
    with pytest.raises(error, match=text):
        batch(states, **more)


def test_only_final_states_of_the_own_key_hold_the_examples_of_a_key_together():
    def options(**states):
        source = hs.from_examples([{"k": "a", "x": [1.0]}])
        arguments = {"initial_states": states, "num_unroll": 1, "batch_size": 1}
        pipeline = source.batch_sequences_with_states("k", ["x"], [], **arguments)
        return pipeline.declaration().shape.options

    pool = hs.from_pool("g", 0.5, default=0.0)
    assert by_key(options(g=0.0, h=hs.final_state("h", default=0.0)))
    assert not by_key(options(g=0.0, h=pool))
    assert not by_key(hs.from_examples([{"x": 1}]).batch(2).declaration().shape.options)
