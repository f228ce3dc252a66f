"""``headrace restart`` has a server start a feed from its beginning."""

from __future__ import annotations

import pytest

from headrace_server.cli import main

from .served import Served, served

__all__ = ["served"]


def test_a_feed_is_started_anew(served: Served, capsys: pytest.CaptureFixture[str]):
    assert main(["restart", "a", "--http", served.address]) == 0
    assert served.asked == [{"restart": "a", "force": False}]
    assert capsys.readouterr().out == "feed 'a' starts from its beginning\n"


def test_one_that_is_used_is_refused_unless_forced(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    assert main(["restart", "used", "--http", served.address]) == 1
    assert "trainer 3 at gpu7 uses it" in capsys.readouterr().err
    assert main(["restart", "used", "--force", "--http", served.address]) == 0
    assert served.asked == [{"restart": "used", "force": True}]
    assert main(["restart", "absent", "--http", served.address]) == 2
