"""User code is found by its name in any process, or sent there by value."""

import functools
import json
import pickle
import sys

import numpy as np
import pytest

from headrace_server.pipeline.function_names import (
    Sent,
    error_with_place,
    load_file,
    name_of,
    resolve,
)


def double(x):
    return 2 * x


class Tools:
    def method(self, x):
        return x

    def __call__(self, x):
        return x


@functools.wraps(double)
def wrapped(x):
    return double(x)


def hidden(x):
    return x


def replacement(x):
    return x


original_hidden, hidden = hidden, replacement


def local():
    def inner(x):
        return x

    return inner


def _stacks():
    np.stack([])


def _parses():
    json.loads("{")


def _draws():
    np.random.default_rng(0).integers(0, 0)


@pytest.mark.parametrize("function", [_stacks, _parses, _draws])
def test_the_place_of_an_error_is_the_users_line_that_called_a_library(function):
    with pytest.raises(ValueError) as caught:
        function()
    text = error_with_place(caught.value)
    assert text.endswith(f"({__file__}:{function.__code__.co_firstlineno + 1})")


def test_the_place_of_an_error_amid_packages_is_the_first_in_one():
    names = {}
    package = "/lib/python/site-packages/package/"
    exec(compile("def inner():\n    1 / 0", package + "inner.py", "exec"), names)
    exec(compile("def outer():\n    inner()", package + "outer.py", "exec"), names)
    with pytest.raises(ZeroDivisionError) as caught:
        names["outer"]()
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert error_with_place(error) == f"ZeroDivisionError: division by zero ({package}outer.py:2)"


HERE = __name__


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: x, f"{HERE}:<lambda>"),
        (local(), f"{HERE}:local.<locals>.inner"),
        (functools.partial(double), f"partial({HERE}:double)"),
        (Tools().method, f"{HERE}:Tools.method"),
        (Tools(), f"{HERE}:Tools"),
        (original_hidden, f"{HERE}:hidden"),
        (wrapped, f"{HERE}:double"),
        ([].append, "builtins:list.append"),
    ],
)
def test_what_no_import_finds_is_sent_with_a_name_for_people(fn, name):
    sent = name_of(fn)
    assert isinstance(sent, Sent)
    assert str(sent) == name and resolve(sent) is fn
    there = pickle.loads(pickle.dumps(sent))  # noqa: S301 - our own
    assert there == sent.packed() and str(there) == name
    assert resolve(there)(3) == fn(3)


def test_a_file_is_loaded_once_and_its_functions_are_named_by_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("THREE = 3\n")
    file = tmp_path / "my-feeds.py"
    file.write_text(
        "import beside_it\n"
        "assert __name__ != '__main__'\n"
        "def triple(x):\n    return beside_it.THREE * x\n"
    )
    module = load_file(file)
    assert load_file(str(file)) is module
    assert name_of(module.triple) == f"{file}:triple"
    assert resolve(f"{file}:triple") is module.triple
    assert module.triple(2) == 6


def test_a_file_that_fails_to_load_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(
        ImportError, match=r"broken\.py.*raised ZeroDivisionError: .*broken\.py:1\)$"
    ):
        load_file(file)
    assert {name for name in set(sys.modules) - before if "broken" in name} == set()
    file.write_text("x = 1  # of another size: Python compares that and the second\n")
    assert resolve(f"{file}:x") == 1
