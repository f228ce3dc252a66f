"""``headrace end`` has a server close a feed."""

from __future__ import annotations

import pytest

from headrace_server.cli import main

from .served import Served, served

__all__ = ["served"]


def test_a_feed_is_closed(served: Served, capsys: pytest.CaptureFixture[str]):
    assert main(["end", "a", "--http", served.address]) == 0
    assert main(["end", "b/c&d", "--cancel", "--http", served.address]) == 0
    assert served.asked == [{"end": "a", "cancel": False}, {"end": "b/c&d", "cancel": True}]
    assert "feed 'a' reads no more" in capsys.readouterr().out


def test_a_feed_that_is_not_served_is_refused(served: Served, capsys: pytest.CaptureFixture[str]):
    assert main(["end", "absent", "--http", served.address]) == 2
    assert "is none of a" in capsys.readouterr().err
