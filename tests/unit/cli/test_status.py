"""``headrace status`` prints the state of a server, and its exit code shows whether it is well."""

from __future__ import annotations

import pytest

from headrace_server.cli import main

from ..server.statuses import feed
from .served import Served, served

__all__ = ["served"]


def test_a_feed_that_has_failed_makes_the_exit_code_1(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.feeds = {"a": feed(state="failed", failure=["data", "row 7 is bad"])}
    assert main(["status", "--http", served.address]) == 1
    assert "row 7 is bad" in capsys.readouterr().out
