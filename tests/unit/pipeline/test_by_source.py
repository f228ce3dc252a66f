"""Functions of a notebook or a script are given to workers by their text, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_server.pipeline.by_source import by_source, is_by_source
from headrace_server.pipeline.function_names import stable_name
from tests.nursery import warm_run

#: A program that runs cells as IPython does: in ``__main__``, which has no file.
DRIVER = """
import linecache, sys, traceback
cells = sys.stdin.read().split("# cell\\n")
names = sys.modules["__main__"].__dict__
for number, cell in enumerate(cells):
    name = f"<ipython-input-{number}-abc>"
    linecache.cache[name] = len(cell), None, cell.splitlines(True), name
    try:
        exec(compile(cell, name, "exec"), names)
    except TypeError as error:
        print(f"TypeError: {error}")
"""

START = """
import math, sys, stat, os
import xml.etree.ElementTree
import os.path as paths
from fractions import Fraction as Part
import numpy as np
import headrace
import headrace_server as hs
from tests.nursery import warm_run
RATE, NAMES = 3, {"a": [1, 2.5, None]}
OBJECT = object()
# cell
"""

SERVED = """
def served(pipeline, **options):
    with hs.run(pipeline.batch(4), **options) as server:
        with headrace.connect(server.address, timeout=60, prefetch=0) as feed:
            print([float(x) for x in next(feed)["x"]])
        source = server._supervisor._directory.path / "source"
        for path in [source, *source.glob("*.py")]:
            print(oct(stat.S_IMODE(path.stat().st_mode)))
examples = hs.from_examples([{"x": float(i)} for i in range(40)])
# cell
"""


def notebook(tmp_path: Path, *cells: str) -> list[str]:
    done = warm_run("-c", DRIVER, text="# cell\n".join(cells), cwd=tmp_path, serves=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_functions_of_a_notebook_run_in_workers_and_a_new_body_is_another_function(tmp_path: Path):
    first = """
def helper(x: float, by=RATE):
    return x * by + len(NAMES["a"])
# cell
@hs.by_source
def f(example: dict) -> dict:
    "A text."
    part = Part(1, 2) + xml.etree.ElementTree.fromstring("<a>1</a>").text.count("1")
    assert paths.sep == "/"
    return {"x": np.float64(helper(example["x"]) + math.floor(part))}
# cell
def even(example):
    return example["x"] % 2 == 0
# cell
pipeline = examples.filter(hs.by_source(even)).map(f)
served(pipeline, state_dir="state", durability="process")
# cell
"""
    comment = (
        first.split("# cell\n")[1].replace("A text", "Another").replace("part =", "# x\n    part =")
    )
    changed = comment.replace("helper(example", "-helper(example")
    served = (
        "served(examples.filter(hs.by_source(even)).map(f), "
        "state_dir='state', durability='process'{})\n"
    )
    lines = notebook(
        tmp_path,
        START,
        SERVED,
        first,
        comment,
        served.format(""),
        changed,
        "try:\n    "
        + served.format("")
        + "except headrace.ServerError as error:\n    print(error)\n",
        served.format(", allow_config_change=True"),
    )
    modes = ["0o700", "0o600", "0o600"]
    assert lines[0:4] == ["[4.0, 10.0, 16.0, 22.0]", *modes]
    assert lines[4:8] == ["[28.0, 34.0, 40.0, 46.0]", *modes]
    assert "the function headrace_source_f:f was changed" in "\n".join(lines[8:-4])
    assert lines[-4:] == ["[-50.0, -56.0, -62.0, -68.0]", *modes]


def test_a_script_needs_no_guard_for_functions_that_are_given_so(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import headrace\nimport headrace_server as hs\n"
        "@hs.by_source\ndef f(example):\n    return {'x': example['x'] + 1}\n"
        "with hs.run(hs.from_examples([{'x': 1}, {'x': 2}]).map(f).batch(2)) as server:\n"
        "    with headrace.connect(server.address, timeout=60) as feed:\n"
        "        print(next(feed)['x'].tolist())\n"
    )
    done = warm_run(script, serves=True)
    assert done.stdout == "[2, 3]\n", done.stderr


REFUSED = {
    "f = lambda e: e": "is a lambda: write a def",
    "def make():\n    k = 1\n    def f(e):\n        return k\n    return f\nf = make()": (
        "is a closure over k"
    ),
    "def make():\n    def f(e):\n        return e\n    return f\nf = make()": (
        "is no def at the top level"
    ),
    "def f(e):\n    return nothing": "uses 'nothing', which is not defined",
    "def f(e):\n    return OBJECT": "uses OBJECT, an object, which no text stands for",
    "class C:\n    pass\ndef f(e):\n    return C()": "uses C, a type, which no text",
    "g = lambda e: e\ndef f(e):\n    return g(e)": "calls <lambda> by another name, g",
    "def g(e):\n    return e\nh = g\ndef f(e):\n    return h(e)": "calls g by another name, h",
    "import functools\n@functools.lru_cache\ndef g(e):\n    return e\ndef f(e):\n    return g(e)": (
        "uses g, a _lru_cache_wrapper, which no text stands for"
    ),
    "def d(x):\n    return x\n@d\ndef f(e):\n    return e": "is decorated with d",
    "exec('def f(e): return e', globals())": "has no source text",
    "def g(e):\n    return 2\ndef f(e):\n    return 1\nf.__code__ = g.__code__": (
        "does something else than its source text says"
    ),
}


def test_a_function_without_source_text_is_refused_with_the_reason(tmp_path: Path):
    uses = "\nhs.from_examples([{'x': 1}]).map(hs.by_source(f))\n"
    lines = notebook(tmp_path, START, *(cell + uses for cell in REFUSED))
    assert len(lines) == len(REFUSED)
    for line, words in zip(lines, REFUSED.values(), strict=True):
        assert line.startswith("TypeError: fn: by_source: ") and words in line, (line, words)


@by_source
def of_a_module(example: Any) -> Any:
    return example


def test_a_function_of_a_module_is_imported_as_ever():
    from headrace_server.pipeline.function_names import name_of, resolve

    assert not is_by_source(of_a_module)
    assert resolve(name_of(of_a_module)) is of_a_module
    with pytest.raises(TypeError, match="is an int, not a function"):
        by_source(3)  # type: ignore[type-var]


def test_a_name_that_is_compared_has_no_digest():
    name = "headrace_source_f_1_0123456789ab:f"
    assert stable_name(name) == "headrace_source_f_1:f"
    assert stable_name('["mine:f", 1]') == '["mine:f", 1]'
