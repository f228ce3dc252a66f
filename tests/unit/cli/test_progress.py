"""Progress as a line every some seconds, and as a bar on a terminal."""

from __future__ import annotations

import io

import pytest

from headrace_server.cli.progress import Progress, count, size


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_a_line_comes_every_some_seconds_and_none_for_short_work():
    clock, out = Clock(), io.StringIO()
    with Progress("converting", 1000, "rows", out, clock, line_every_s=5) as progress:
        for n in range(1, 13):
            clock.now += 1.0
            progress.to(50 * n)
    assert out.getvalue().splitlines() == [
        "converting   25%  250 of 1,000 rows, 50/s, 15 s left",
        "converting   50%  500 of 1,000 rows, 50/s, 10 s left",
    ]


def test_a_bar_is_drawn_over_itself_and_goes_away_in_the_end():
    clock, out = Clock(), Terminal()
    with Progress("indexing", 4 << 20, "bytes", out, clock) as progress:
        clock.now += 1.0
        progress.to(1 << 20)
        clock.now += 0.01
        progress.to(2 << 20)  # too soon to be drawn
    drawn = out.getvalue().split("\r")
    assert (
        drawn[1].rstrip()
        == ("indexing  [######..................]   25%  1.0 MiB of 4.0 MiB, 1.0 MiB/s, 3 s left")[
            : len(drawn[1].rstrip())
        ]
    )
    assert len(drawn) == 4 and not drawn[2].strip() and drawn[3] == ""


def test_what_was_done_before_counts_for_the_share_and_not_for_the_pace():
    clock = Clock()
    progress = Progress("converting", 1000, "rows", io.StringIO(), clock)
    progress.start(500)
    clock.now = 10.0
    progress.to(600)
    assert progress.text(clock.now) == "converting   60%  600 of 1,000 rows, 10/s, 40 s left"


def test_where_the_end_is_not_known_only_what_is_done_is_told():
    clock = Clock()
    progress = Progress("checking", None, "examples", io.StringIO(), clock)
    clock.now = 2.0
    progress.to(3000)
    assert progress.text(clock.now) == "checking  3,000 examples, 1,500/s"


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


def test_large_numbers_and_long_times_can_be_read():
    assert count(1234567) == "1,234,567"
    clock = Clock()
    progress = Progress("x", 100_000, "rows", io.StringIO(), clock)
    clock.now = 1.0
    for done, left in ((10, "2 h 46 min left"), (500, "3 min 19 s left")):
        progress.to(done)
        assert progress.text(1.0).endswith(left)
