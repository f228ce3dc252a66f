"""``headrace inspect`` says in a line where a sequence is, or that it is nowhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_server.cli import main

from ..server.statuses import feed
from .served import Served, served, stranger

__all__ = ["served"]

PLACE = {"partition": 3, "epoch": 0, "segment": 2, "segments": 7}


def inspected(served: Served, *words: str, found: Any = ()) -> int:
    pipeline = {"source": "npz", "stages": [], "shape": "sequences", "partitions": 1}
    served.feeds = {"speech": feed(pipeline=pipeline), "plain": feed()}
    served.answer = {"found": list(found)}
    return main(["inspect", *words, "--http", served.address])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"where": "leased", "trainer": 4, "since_s": 61.25, "batch": 9},
            "segment 2 of 7, state after 2 segments, leased to trainer 4 for 61.2 s (batch 9)",
        ),
        (
            {"where": "in a batch that nobody has", "batch": 9},
            "segment 2 of 7, state after 2 segments, in a batch that nobody has (batch 9)",
        ),
        ({"where": "ready"}, "segment 2 of 7, state after 2 segments, ready"),
        ({"where": "ready", "segment": 1}, "segment 1 of 7, state after 1 segment, ready"),
        ({"where": "not begun", "segment": 0}, "segment 0 of 7, initial state, not begun"),
    ],
)
def test_where_it_is_and_who_has_it_is_said(
    served: Served, capsys: pytest.CaptureFixture[str], more: dict[str, Any], says: str
):
    assert inspected(served, "utt-7", found=[{**PLACE, **more}]) == 0
    assert capsys.readouterr().out == f"utt-7: partition 3, epoch 1, {says}\n"
    assert served.asked == [{"order": "inspect", "feed": "speech", "key": b"utt-7".hex()}]


def test_a_key_that_is_nowhere_makes_the_exit_code_1(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    assert inspected(served, "utt-7") == 1
    assert "utt-7 is not on its way in feed 'speech'" in capsys.readouterr().out


def test_a_key_may_be_any_bytes(served: Served, capsys: pytest.CaptureFixture[str]):
    assert inspected(served, "\udcff& +é", "--json", found=[{**PLACE, "where": "ready"}]) == 0
    assert served.asked[0]["key"] == b"\xff& +\xc3\xa9".hex()
    assert json.loads(capsys.readouterr().out)["found"] == [{**PLACE, "where": "ready"}]


def test_a_feed_without_segments_is_a_mistake(served: Served, capsys: pytest.CaptureFixture[str]):
    assert inspected(served, "k", "--feed", "plain") == 2
    assert "none of the feeds of segments" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"[1, 2]", b'{"found": 3}', b"null", b"<html>hello</html>"])
def test_another_kind_of_server_is_told_in_a_line(
    answer: bytes, capsys: pytest.CaptureFixture[str]
):
    with stranger(200, "application/json", answer) as url:
        assert main(["inspect", "k", "--http", url]) == 1
    said = f"headrace: the peer at {url} (which answers 200) is no headrace server, or not of this "
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("feed", ["nope", "", "\udcff"])
def test_a_feed_that_is_not_served_is_named(
    served: Served, capsys: pytest.CaptureFixture[str], feed: str
):
    assert inspected(served, "k", "--feed", feed) == 2
    said = f"headrace: feed={feed!r} is none of the feeds of segments: speech\n"
    assert capsys.readouterr().err == said


def test_a_server_that_has_failed_knows_no_feeds_and_says_why(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.fail("the locator is gone")
    assert main(["inspect", "k", "--feed", "speech", "--http", served.address]) == 1
    assert capsys.readouterr().err.endswith("answers 503: the locator is gone\n")
