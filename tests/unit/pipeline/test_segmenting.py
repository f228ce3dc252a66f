"""Segments with states are declared; a wrong call raises at once."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.pipeline.segment_options import fitted

FEATURES = {
    "utt": hs.scalar("string"),
    "audio": hs.sequence("float32", (64,)),
    "flags": hs.sequence("bool"),
    "twelve": hs.fixed("int32", (12, 2)),
    "nine": hs.fixed("int32", (9,)),
    "label": hs.scalar("int64"),
    "start": hs.fixed("float16", (2, 8)),
    "tag": hs.fixed("bytes", (3,)),
    "hollow": hs.fixed("float32", (4, 0)),
    "thin": hs.sequence("float32", (0,)),
    "p": hs.scalar("float32"),
}
STATES = {"lstm": hs.zeros((2, 256)), "seen": "start"}
#: Arguments without which there is no shape.
LEAST = {
    "input_key": "utt",
    "input_sequences": ["audio"],
    "input_context": ["label"],
    "initial_states": STATES,
    "num_unroll": 20,
    "batch_size": 32,
}


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def unknown():
    return source().map("pkg.mod:f")


def batch(pipeline=None, **arguments):
    return (pipeline or source()).batch_sequences_with_states(**{**LEAST, **arguments})


def saver(pipeline=None, **arguments):
    given = {"input_length": "label", **LEAST, **arguments}
    return (pipeline or source()).sequence_queueing_state_saver(**given)


def options(pipeline):
    shape = pipeline.declaration().shape
    assert shape.kind == "sequences"
    return shape.options


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"stride": 21}, ValueError, "stride=21 is more than num_unroll=20: the steps between"),
        ({"phase": "even"}, ValueError, "phase='even' is not one of None, 'random'"),
        ({"phase": 1}, TypeError, "phase=1 is not one of None, 'random'"),
        ({"phase_seed": 7}, ValueError, "phase_seed=7 needs phase='random': nothing is drawn"),
        (
            {"phase": "random", "pad": False, "input_length": "label"},
            ValueError,
            "phase='random' needs pad=True",
        ),
    ],
)
def test_a_mistake_in_the_geometry_names_argument_value_and_limit(given, error, text):
    with pytest.raises(error, match=text):
        batch(**given)


def test_without_padding_the_steps_must_be_those_of_whole_segments():
    for unroll, stride in ((4, 4), (4, 2), (6, 3), (12, 1), (8, 1)):
        saver(input_sequences=["twelve"], num_unroll=unroll, stride=stride)
    text = "'twelve' has 12 steps, which is not num_unroll=5 and a multiple of stride=2 more"
    with pytest.raises(ValueError, match=text):
        saver(input_sequences=["twelve"], num_unroll=5, stride=2)
    with pytest.raises(ValueError, match="which is not num_unroll=13 and"):
        saver(input_sequences=["twelve"], num_unroll=13, stride=1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "batch_sequences_with_states.. lacks initial_states, num_unroll, batch_size$"),
        ({"num_unroll": 2, "batch_size": 3}, "lacks initial_states$"),
        ({"initial_states": STATES, "batch_size": 3}, "lacks num_unroll$"),
        ({"initial_states": STATES, "num_unroll": 3}, "lacks batch_size$"),
    ],
)
def test_a_missing_required_argument_is_named(given, text):
    with pytest.raises(TypeError, match=text):
        source().batch_sequences_with_states("utt", ["audio"], ["label"], **given)


def test_only_the_key_may_be_left_out_of_the_columns():
    given = {name: value for name, value in LEAST.items() if name != "input_key"}
    assert options(source().batch_sequences_with_states(**given))["input_key"] is None
    for name in ("input_sequences", "input_context"):
        less = {n: value for n, value in given.items() if n != name}
        for call in ("batch_sequences_with_states", "sequence_queueing_state_saver"):
            more = {"input_length": "label"} if call.startswith("sequence") else {}
            with pytest.raises(TypeError, match=f"lacks {name}$"):
                getattr(source(), call)(**less, **more)


#: Mistakes that show without the schema.
ALWAYS = [
    (
        {"input_sequences": "audio"},
        TypeError,
        r"input_sequences='audio' is a str; it is a list of .* names, or a dict.*: \['audio'\]",
    ),
    (
        {"input_sequences": {"audio": 1}},
        TypeError,
        r"input_sequences\['audio'\]=1 is an int",
    ),
    ({"input_sequences": {"n" * 247: "audio"}}, ValueError, "a name in input_sequences=.*most 246"),
    ({"input_sequences": {}}, ValueError, "input_sequences is empty: at least one column"),
    ({"input_sequences": []}, ValueError, "input_sequences is empty: at least one column"),
    (
        {"input_context": [f"c{i}" for i in range(1013)]},
        ValueError,
        "input_sequences, input_context and initial_states name 1016 columns; the most is 1015",
    ),
    ({"initial_states": {}}, ValueError, "initial_states is empty: at least one state"),
    ({"initial_states": {"h": []}}, ValueError, r"initial_states\['h'\].*\[0\], which is empty"),
    ({"order": "row"}, ValueError, "order='row' is not one of 'arrival', 'lanes'"),
    ({"state_placement": "gpu"}, ValueError, "state_placement='gpu' is not one of 'server', 'tra"),
    (
        {"state_placement": "trainer"},
        ValueError,
        "state_placement='trainer' needs order='lanes', not 'arrival': a trainer finds a state",
    ),
]
#: Mistakes against the schema.
KNOWN = [
    ({"input_key": "name"}, ValueError, "input_key='name' is not one of the columns utt, audio"),
    ({"input_key": "p"}, TypeError, "input_key='p' is float32.*strings or integers.  Without inp"),
    (
        {"input_key": "flags"},
        TypeError,
        "input_key='flags' is bool.*must be of strings or integers",
    ),
    ({"input_key": "tag"}, ValueError, r"input_key='tag' is bytes\[3\]; it must be one string or"),
    (
        {"input_key": "nine"},
        ValueError,
        r"input_key='nine' is int32\[9\]; it must be one string or",
    ),
    ({"input_sequences": ["x"]}, ValueError, "input_sequences: 'x' is not one of the columns"),
    ({"input_sequences": ["label"]}, ValueError, r"'label' is int64\[\]; it must be a sequence of"),
    ({"input_sequences": ["twelve", "nine"]}, ValueError, "'twelve' has 12 steps, 'nine' has 9"),
    (
        {"input_context": ["audio"]},
        ValueError,
        r"'audio' is float32\[\?, 64\], which varies; .*declare .*hs\.fixed\('float32', shape\)",
    ),
    ({"input_length": "p"}, TypeError, r"input_length='p' is float32\[\]; it must be of integers"),
    ({"input_length": "utt"}, ValueError, "input_length='utt' is .*one number per example, or a s"),
    (
        {"initial_states": {"h": "x"}},
        ValueError,
        r"initial_states\['h'\]='x' is not one of the columns",
    ),
]


@pytest.mark.parametrize("declare", [batch, saver])
@pytest.mark.parametrize(("arguments", "error", "text"), ALWAYS + KNOWN)
def test_a_mistake_names_argument_value_and_limit(declare, arguments, error, text):
    with pytest.raises(error, match=text):
        declare(**arguments)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"order": "arrival", "initial_states": {"h": hs.zeros(())}},
            "pack=True needs order='lanes', not 'arrival'",
        ),
        ({"pad": False, "input_length": "label"}, "pack=True needs pad=True"),
        ({"input_length": "label"}, "input_length=column 'label' does not go with pack=True: .*"),
        ({"stride": 5}, "stride=5 does not go with pack=True: rows share no steps"),
        ({"left": 1}, "left=1 does not go with pack=True"),
        ({"right": 2}, "right=2 does not go with pack=True"),
        ({"phase": "random"}, "phase='random' does not go with pack=True"),
        (
            {"initial_states": STATES},
            r"initial_states\['seen'\]='start' does not go with pack=True: .*input_context",
        ),
        ({"batch_size": 800}, "batch_size=800 is too large: .*in 80 bytes.*the most is 7"),
    ],
)
def test_what_has_no_meaning_in_packed_rows_is_refused_with_the_reason(given, text):
    least = {"order": "lanes", "pack": True, "initial_states": {}}
    with pytest.raises(ValueError, match=text):
        batch(**{**least, **given})


def test_packed_lanes_are_plain_data_that_other_shapes_do_not_have():
    least = {"order": "lanes", "pack": True, "initial_states": {}}
    with pytest.raises(TypeError, match="pack=1 is an int; it is True or False"):
        batch(**{**least, "pack": 1})
    with pytest.raises(ValueError, match=r"map_segments\(\) does not go with pack=True"):
        batch(**least).map_segments("m:f")
    assert options(batch(**least, stride=20))["pack"] is True
    assert "pack" not in options(batch())


@pytest.mark.parametrize(
    ("declare", "error", "text"),
    [
        (lambda: source().map_segments("m:f"), ValueError, r"comes after \.batch_sequences_with"),
        (
            lambda: source().batch(2).map_segments("m:f"),
            ValueError,
            r"\.map_segments\(\) comes after \.batch_sequences_with_states\(\) or .*state_saver",
        ),
        (
            lambda: batch().map_segments("m:f").options().map_segments("m:g"),
            ValueError,
            r"map_segments\(\) is called twice",
        ),
        (
            lambda: batch().map_segments("m:f", schema={"x": hs.sequence("int8")}),
            ValueError,
            r"schema\['x'\] varies; segments give arrays of one shape: declare it as hs.fixed",
        ),
        (
            lambda: batch().map_segments("m:f", schema={"a:b": hs.scalar("int8")}),
            ValueError,
            "a name in schema='a:b' holds a colon",
        ),
        (lambda: batch().map_segments(3), TypeError, "fn: 3 is an int"),
        (lambda: batch().map_segments("m:f", seed=0.5), TypeError, "seed=0.5 is a float"),
    ],
)
def test_a_function_of_segments_is_declared_once_after_their_shape(declare, error, text):
    with pytest.raises(error, match=text):
        declare()


@pytest.mark.parametrize(("arguments", "error", "text"), KNOWN)
def test_errors_that_need_the_schema_are_raised_when_it_is_known(arguments, error, text):
    declared = options(batch(unknown(), **arguments))
    if "input_length" in arguments:  # whose values are checked as they are read
        assert declared["input_length"] == ["column", arguments["input_length"]]
        return
    with pytest.raises(error, match=text):
        fitted(declared, source().fields)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"make_keys_unique_seed": 0}, ValueError, "make_keys_unique_seed=0 needs make_keys_uniq"),
        (
            {"make_keys_unique": True, "make_keys_unique_seed": 0.5},
            TypeError,
            "make_keys_unique_seed=0.5 is a float; it is an int or None",
        ),
        (
            {"make_keys_unique": True, "make_keys_unique_seed": 2**63},
            ValueError,
            "make_keys_unique_seed=9223372036854775808 is too large",
        ),
        (
            {"batch_size": 2700, "capacity": None},
            ValueError,
            "batch_size=2700 is too large: .*segments in 24 bytes.*the most is 26",
        ),
    ],
)
def test_invalid_arguments_of_batch_sequences_with_states_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        batch(**arguments)


def test_without_padding_the_input_length_must_be_given():
    with pytest.raises(ValueError, match="input_length=None needs pad=True"):
        batch(input_length=None, pad=False)
    with pytest.raises(TypeError, match="input_length=None is a NoneType; it is a column's name"):
        saver(input_length=None)


def test_without_padding_a_fixed_number_of_steps_must_fill_its_segments():
    text = "'twelve' has 12 steps, which is no multiple of num_unroll=5.*pad=True"
    with pytest.raises(ValueError, match=text):
        saver(input_sequences=["twelve"], num_unroll=5)
    assert options(batch(input_sequences=["twelve"], num_unroll=5))["pad"]


def test_a_schema_that_comes_later_completes_what_was_declared():
    early, late = options(batch()), options(batch(unknown()))
    brought = late["initial_states"][1]
    assert (brought["dtype"], brought["shape"]) == (None, None)
    assert fitted(late, source().fields) == early
    assert (brought["dtype"], brought["shape"]) == (None, None)


def shown(pipeline):
    return repr(pipeline).splitlines()[-1]


def test_a_sequence_whose_steps_differ_in_shape_is_to_be_declared():
    """Nested lists of a file do not show that the inner ones are of one length."""
    shapes = [{"k": "a", "x": np.zeros((3, 2))}, {"k": "b", "x": np.zeros((3, 4))}]
    text = r"'x' is float64\[3, \?\]; only .*: .*declare .*, as hs\.sequence\('float64', shape\)"
    with pytest.raises(ValueError, match=text):
        hs.from_examples(shapes).batch_sequences_with_states(
            "k", ["x"], [], None, {"s": 0.0}, num_unroll=2, batch_size=2
        )


def test_lanes_may_have_no_states():
    declared = options(batch(initial_states={}, order="lanes"))
    assert declared["initial_states"] == [] and declared["state_placement"] == "server"
    assert "initial_states={}" in shown(batch(initial_states={}, order="lanes"))
    with pytest.raises(ValueError, match="in order='arrival' the segment is handed out when that"):
        batch(initial_states={})
    with pytest.raises(ValueError, match="state_placement='trainer' needs a state"):
        batch(initial_states={}, order="lanes", state_placement="trainer")
