"""A selector is a column, a function or a constant, and is checked where the columns are known."""

import pytest

from headrace_proto.schema import Field
from headrace_server.pipeline.argument_checks import checked_value

KNOWN = {
    "n": Field("int16"),
    "p": Field("float32"),
    "flag": Field("bool"),
    "text": Field("bytes"),
    "z": Field("complex64"),
    "steps": Field("float32", (None, 4)),
    "words": Field("bytes", (None,)),
    "grid": Field("float32", (None, None)),
    "pair": Field("float32", (2,)),
}


def of(columns):
    return columns["n"]


@pytest.mark.parametrize("name", ["steps", "words", "pair", "n", "flag"])
def test_a_sequence_serves_where_its_length_counts(name):
    assert checked_value("a", name, KNOWN, sequence=True, integer=True) == ["column", name]


@pytest.mark.parametrize(
    ("value", "options", "error", "text"),
    [
        ("lost", {}, ValueError, "a='lost' is not one of the columns n, p, flag, text"),
        ("text", {}, ValueError, "a='text' is bytes.*; it must be one number per example"),
        ("pair", {}, ValueError, "a='pair' is float32.*; it must be one number per example"),
        ("steps", {}, ValueError, "a='steps' is float32.*; it must be one number per example"),
        ("p", {"integer": True}, TypeError, "a='p' is float32.*; it must be of integers"),
        ("a.b:", {}, ValueError, "^a: 'a.b:' is not of the form module:name"),
        (None, {"constant": (0, 1)}, TypeError, "name, a function of the columns or a number"),
    ],
)
def test_an_invalid_selector_is_refused_with_the_name_of_its_argument(value, options, error, text):
    with pytest.raises(error, match=text):
        checked_value("a", value, KNOWN, **options)
