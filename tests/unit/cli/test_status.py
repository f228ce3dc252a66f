"""``headrace status`` prints the state of a server, and its exit code shows whether it is well."""

from __future__ import annotations

import pytest

from headrace_server.cli import main

from ..server.statuses import feed
from .served import Served, served

__all__ = ["served"]


def test_a_watch_shows_it_again_until_ctrl_c_and_outlives_the_server(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def sleep(seconds: float) -> None:
        shown.append(capsys.readouterr().out)
        if len(shown) == 2:
            served.stop()
        if len(shown) == 3:
            raise KeyboardInterrupt

    shown: list[str] = []
    monkeypatch.setattr("headrace_server.cli.remote.time.sleep", sleep)
    assert main(["status", "--watch", "--http", served.address]) == 0
    assert all(text.startswith("serving  up ") for text in shown[:2])
    assert shown[2].startswith(f"no server answers at {served.address}: ")


def test_a_feed_that_has_failed_makes_the_exit_code_1(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.feeds = {"a": feed(state="failed", failure=["data", "row 7 is bad"])}
    assert main(["status", "--http", served.address]) == 1
    assert "row 7 is bad" in capsys.readouterr().out
