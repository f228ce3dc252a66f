"""Progress as a line every some seconds."""

from __future__ import annotations

import pytest

from headrace_server.cli.progress import Progress, count, size


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


def test_what_was_done_before_counts_for_the_share_and_not_for_the_pace(
    capsys: pytest.CaptureFixture[str],
):
    clock = Clock()
    progress = Progress("converting", 1000, "rows", clock)
    progress.start(500)
    clock.now = 10.0
    progress.to(600)
    assert capsys.readouterr().err == "converting   60%  600 of 1,000 rows, 10/s, 40 s left\n"


def test_where_the_end_is_not_known_only_what_is_done_is_told(capsys: pytest.CaptureFixture[str]):
    clock = Clock()
    progress = Progress("checking", None, "examples", clock)
    clock.now = 5.0
    progress.to(3000)
    assert capsys.readouterr().err == "checking  3,000 examples, 600/s\n"


@pytest.mark.parametrize(
    ("nbytes", "told"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (150 << 20, "150 MiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_bytes_are_told_in_the_unit_that_one_reads(nbytes: int, told: str):
    assert size(nbytes) == told


def test_large_numbers_and_long_times_can_be_read(capsys: pytest.CaptureFixture[str]):
    assert count(1234567) == "1,234,567"
    clock = Clock()
    progress = Progress("x", 100_000, "rows", clock)
    for done, left in ((50, "2 h 46 min left"), (5000, "3 min 10 s left")):
        clock.now += 5.0
        progress.to(done)
        assert capsys.readouterr().err.endswith(f"{left}\n")
