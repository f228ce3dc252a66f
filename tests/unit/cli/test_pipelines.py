"""Pipelines by the names that a command line gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_server.cli.pipelines import load

FEEDS = """
import headrace_server as hs

def one():
    return hs.from_examples([{"x": 1}]).batch(1)

class Holder:
    two = one()

both = {"first": one(), "second": one()}
three = 3

def takes(x):
    return x

def raises():
    raise RuntimeError("as it is")

def misused():
    return hs.read_csv("a", {"x": hs.sequence("int8")}).batch(1)
"""


@pytest.fixture
def feeds(tmp_path: Path) -> str:
    (tmp_path / "feeds.py").write_text(FEEDS)
    return str(tmp_path / "feeds.py")


def test_a_feed_has_the_name_of_its_function_or_that_of_a_dict(feeds: str):
    found = load([f"{feeds}:one", f"{feeds}:both", f"{feeds}:Holder.two"])
    assert list(found) == ["one", "first", "second", "two"]


def test_a_target_may_name_its_feed(feeds: str):
    assert list(load([f"speech={feeds}:one", f"{feeds}:one"])) == ["speech", "one"]
    with pytest.raises(TypeError, match="is a dict, which names its feeds itself"):
        load([f"speech={feeds}:both"])
    with pytest.raises(ValueError, match=r"'=.*feeds\.py:one' has no name of a feed before the ="):
        load([f"={feeds}:one"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("three", r"gives 3 \(int\), not a pipeline"),
        ("takes", "is called without arguments: missing a required argument: 'x'"),
        ("raises", r"raised RuntimeError: as it is \(.*feeds\.py:17\)$"),
        ("misused", r"features\['x'\] is int8.*feeds\.py:20\)$"),
        ("absent", "there is no 'absent'"),
    ],
)
def test_what_gives_no_pipeline_is_named(name: str, words: str, feeds: str):
    with pytest.raises((TypeError, ImportError), match=words):
        load([f"{feeds}:{name}"])


def test_two_feeds_of_one_name_are_refused(feeds: str):
    with pytest.raises(
        ValueError, match=r"two pipelines are called 'one': .*another name, as NAME=.*:one"
    ):
        load([f"{feeds}:one", f"{feeds}:one"])
