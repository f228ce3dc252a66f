"""One option: its values and their form, its errors and its texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace_server.process.option import Option

COUNT = Option("n", "integer", "how many", default=4, least=1, most=8)
TIME = Option("t", "seconds", "how long", default=2.5)
FLAG = Option("f", "flag", "do it", default=False)
PLACE = Option("p", "path", "where", absent="nowhere")
CHOICE = Option("c", "text", "which", choices=("a", "b"))
MANY = Option("m", "text", "who", default=("x", "y"), many=True, metavar="WHO")


@pytest.mark.parametrize(
    ("option", "value", "form"),
    [
        (COUNT, np.int64(8), 8),
        (TIME, 3, 3.0),
        (TIME, np.float32(0), 0.0),
        (FLAG, True, True),
        (PLACE, Path("/x"), "/x"),
        (CHOICE, "a", "a"),
        (MANY, ["x"], ["x"]),  # judged by who takes them
    ],
)
def test_a_value_has_the_form_of_its_kind(option: Option, value: Any, form: Any):
    found = option.check(value, "here")
    assert found == form and type(found) is type(form)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (COUNT, True, "is not an integer, but a bool"),
        (COUNT, 4.0, "is not an integer, but a float"),
        (COUNT, 0, "does not lie in 1 … 8"),
        (COUNT, 9, "does not lie in 1 … 8"),
        (TIME, "3", "is not a number of seconds, but a str"),
        (TIME, False, "is not a number of seconds, but a bool"),
        (TIME, -0.1, "does not lie in 0 … 1000000000 seconds"),
        (TIME, float("nan"), "does not lie in 0 … 1000000000 seconds"),
        (dataclasses.replace(TIME, least=0.1, most=9), 10, "does not lie in 0.1 … 9 seconds"),
        (FLAG, 1, "is not true or false, but an int"),
        (PLACE, 7, "is not a path, but an int"),
        (PLACE, "", "is no path: one has a character, and none is NUL"),
        (PLACE, "a\0b", "is no path: one has a character, and none is NUL"),
        (
            *(PLACE, "a/" + 256 * "b"),
            "is no path: one has less than 4096 bytes, and at most 255 between two slashes",
        ),
        (
            *(PLACE, 2048 * "a/"),
            "is no path: one has less than 4096 bytes, and at most 255 between two slashes",
        ),
        (PLACE, "a\udcff", "is not a text that UTF-8 can hold"),
        (CHOICE, "c", "is not one of a, b"),
        (CHOICE, np.array([1, 2]), "is not one of a, b"),
    ],
)
def test_an_error_names_the_place_and_all_that_is_allowed(option: Option, value: Any, words: str):
    with pytest.raises((TypeError, ValueError)) as caught:
        option.check(value, "HERE=…")
    assert str(caught.value) == f"HERE=… {words}"
    assert isinstance(caught.value, TypeError) == ("but a" in words)


def test_the_text_of_an_option_has_its_default_and_its_bounds():
    assert COUNT.text == "how many (default: 4; 1 … 8)"
    assert TIME.text == "how long (default: 2.5)"
    assert dataclasses.replace(TIME, least=2).text == "how long (default: 2.5; at least 2)"
    assert FLAG.text == "do it"
    assert PLACE.text == "where (default: nowhere)"
    assert MANY.text == "who; may be repeated (default: x y)"
    assert (CHOICE.placeholder, MANY.placeholder, COUNT.placeholder) == ("a|b", "WHO", "N")
