"""``headrace snapshot`` prints the token, or why there is none."""

from __future__ import annotations

import json

import pytest

from headrace_proto.errors import ServerError
from headrace_server.cli import main

from .served import Served, served

__all__ = ["served"]


def test_the_token_is_one_line_of_json(served: Served, capsys: pytest.CaptureFixture[str]):
    assert main(["snapshot", "--http", served.address]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert json.loads(said)["snapshot"] == "20260102T030405Z-0123456789ab"
    assert main(["snapshot", "--http", served.address, "--feed", "b"]) == 0
    assert json.loads(capsys.readouterr().out)["feed"] == "b"


def test_a_feed_that_is_not_served_and_a_snapshot_that_fails_are_told(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    assert main(["snapshot", "--http", served.address, "--feed", "absent"]) == 2
    assert "none of a" in capsys.readouterr().err
    served.failure = ServerError("the disk is full")
    assert main(["snapshot", "--http", served.address]) == 1
    assert "the disk is full" in capsys.readouterr().err
