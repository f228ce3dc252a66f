"""Which edits change a user function, and which do not."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.pipeline.fingerprint import changes, fingerprint, fingerprints

BASE = """
import math
import numpy as np

RATE = 16000
TABLE = {"a": 1}
MEAN = np.zeros(3)


def helper(x, by=2):
    return x * by


class Tool:
    FACTOR = 3

    def use(self, x):
        return x * self.FACTOR


def f(example, gain=1.0):
    scale = helper(RATE) + TABLE["a"] + MEAN.sum() + Tool().use(1)
    try:
        inner = [math.sqrt(v) + gain for v in (1, 2, 3) if v > 1]
    except ValueError:
        inner = {"a", "b"}
    return {"x": example["x"] * scale, "inner": len(inner)}
"""


def loaded(text: str, path: str = "/somewhere/mine.py") -> Any:
    names: dict[str, Any] = {"__name__": "mine"}
    exec(compile(textwrap.dedent(text), path, "exec"), names)
    return fingerprint(names["f"])


def told(text: str) -> tuple[list[str], list[str]]:
    return changes({"mine:f": loaded(BASE)}, {"mine:f": loaded(text)})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(", "# a word\n\n\ndef f("),
        ("gain=1.0):\n", 'gain=1.0):\n    """What it does."""\n'),
        ("gain=1.0):\n", "gain=1.0):\n    # why\n\n"),
        ("by=2):\n", 'by=2):\n    """Its text."""\n'),
        ("    FACTOR = 3\n", '    """A tool."""\n\n    FACTOR = 3  # why\n'),
        ("def f(example, gain=1.0)", "def f(example: dict, gain: float = 1.0) -> dict"),
        (
            'helper(RATE) + TABLE["a"] + MEAN',
            '(\n        helper(\n            RATE\n        )\n        + TABLE["a"] + MEAN',
        ),
        ("import math\n", "math = __import__('math')\n"),
        ("RATE = 16000", "RATE = 16_000\nOTHER = 3\n\ndef g():\n    return OTHER\n"),
    ],
)
def test_a_change_without_effect_does_not_change_the_fingerprint(old: str, new: str) -> None:
    assert old in BASE
    text = BASE.replace(old, new)
    if new.startswith("(\n"):
        text = text.replace("Tool().use(1)", "Tool().use(1)\n    )")
    assert loaded(text, "/elsewhere/under/another/name.py") == loaded(BASE)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('* scale, "inner"', '+ scale, "inner"', "the function mine:f was changed"),
        ("gain=1.0", "gain=2.0", "the function mine:f was changed"),
        ("(1, 2, 3)", "(1, 2, 4)", "the function mine:f was changed"),
        ('{"a", "b"}', '{"a", "c"}', "the function mine:f was changed"),
        ("if v > 1", "if v > 2", "the function mine:f was changed"),
        ("math.sqrt", "math.cbrt", "the function mine:f was changed"),
        ("except ValueError", "except KeyError", "the function mine:f was changed"),
        ("x * by", "x + by", "helper, which mine:f uses, was changed"),
        ("by=2", "by=4", "helper, which mine:f uses, was changed"),
        ("x * self", "x + self", "Tool, which mine:f uses, was changed"),
        ("FACTOR = 3", "FACTOR = 4", "Tool, which mine:f uses, was changed"),
    ],
)
def test_a_change_of_code_is_named(old: str, new: str, words: str) -> None:
    assert old in BASE
    assert told(BASE.replace(old, new)) == ([words], [])


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("RATE = 16000", "RATE = 8000", "RATE"),
        ('TABLE = {"a": 1}', 'TABLE = {"a": 2}', "TABLE"),
        ("np.zeros(3)", "np.ones(3)", "MEAN"),
        ("np.zeros(3)", "np.zeros(3, 'f4')", "MEAN"),
    ],
)
def test_a_changed_value_that_a_function_uses_changes_its_fingerprint(
    old: str, new: str, name: str
) -> None:
    assert told(BASE.replace(old, new)) == ([], [f"{name}, which mine:f uses, has another value"])


def test_decorators_and_closures_are_seen_through() -> None:
    text = """
    import functools

    def twice(times):
        def around(fn):
            @functools.wraps(fn)
            def called(example):
                return [fn(example) for _ in range(times)]
            return called
        return around

    @twice(2)
    def f(example):
        return example
    """
    before = {"mine:f": loaded(text)}
    for old, new in [("@twice(2)", "@twice(3)"), ("return example", "return dict(example)")]:
        assert changes(before, {"mine:f": loaded(text.replace(old, new))})[0]
    assert changes(
        before, {"mine:f": loaded(text.replace("def around", "# x\n\n        def around"))}
    ) == ([], [])


def test_builtins_have_no_parts_and_mutual_recursion_ends() -> None:
    assert fingerprint(len) == {}
    assert fingerprint(3) == {}
    assert len(loaded("def f(n):\n    return g(n)\n\ndef g(n):\n    return f(n)\n")) == 2


def double(example: Any) -> Any:
    return {"x": example["x"] * 2}


def even(columns: Any) -> Any:
    return columns["x"] % 2


def rows() -> Any:
    return [{"x": np.int64(1)}]


def test_all_functions_of_a_pipeline_are_found_and_those_that_are_not_there_left_out() -> None:
    whole = hs.from_function(rows).map(double).filter("no.such:thing").bucket(even, 4, 2)
    names = [f"{__name__}:{name}" for name in ("double", "even", "rows")]
    assert sorted(fingerprints(whole.declaration())) == names
    sampled = hs.from_examples([{"x": 1}]).rejection_sample(even, batch_size=1)
    assert sorted(fingerprints(sampled.declaration())) == names[1:2]
