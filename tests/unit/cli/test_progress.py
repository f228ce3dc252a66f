"""Progress as a line every some seconds."""

from __future__ import annotations

import pytest

from headrace_server.cli.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_every_some_seconds_and_none_for_short_work(
    capsys: pytest.CaptureFixture[str],
):
    clock = Clock()
    progress = Progress("converting", 1000, "rows", clock)
    for n in range(1, 13):
        clock.now += 1.0
        progress.to(50 * n)
    assert capsys.readouterr().err.splitlines() == [
        "converting   25%  250 of 1,000 rows, 50/s, 15 s left",
        "converting   50%  500 of 1,000 rows, 50/s, 10 s left",
    ]
