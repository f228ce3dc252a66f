"""From deaths to rows: three in a row over the same rows leave them out, or fail the feed."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace_server as hs
from headrace_server.journal.left_out_file import left_out_file, left_out_rows
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import IDLE, STEP, Entry
from headrace_server.reading.chunk import IN_STREAM, ORDINAL_BITS, READ_BEFORE
from headrace_server.server.deadly_rows import DeadlyRows, DeathVerdict


def of(on_bad_example: str = "skip", state: Path | None = None) -> DeadlyRows:
    pipeline = hs.from_examples([{"i": 1}]).batch(1).options(on_bad_example=on_bad_example)
    feeds = tuple(FeedConfig(name, pipeline.declaration(), (), 2) for name in ("f", "g"))
    return DeadlyRows(
        RunConfig(feeds, "", (), state_directory=None if state is None else str(state))
    )


def entry(*rows: int, feed: str = "f", partition: int = 0, epoch: int = 0, fixed: int = 0) -> Entry:
    return Entry(STEP, feed, partition, "FILE, record 1", rows, fixed, epoch)


def test_the_rows_that_three_deaths_in_a_row_share_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "feeds" / "f").mkdir(parents=True)
    deadly = of(state=tmp_path)
    assert deadly.died(Entry(IDLE), "words") == DeathVerdict()
    assert deadly.died(entry(1, 2, 3, 4), "words") == DeathVerdict()
    assert deadly.marks()["f"] == {"left_out": [], "suspects": [[0, [1, 2, 3, 4]]]}
    assert deadly.died(entry(2, 3, 9), "words") == DeathVerdict(expected=True)
    assert deadly.marks()["f"]["suspects"] == [[0, [2, 3]]]
    verdict = deadly.died(entry(3), "x" * 9999)
    assert verdict.expected and verdict.failure is None and len(verdict.left_out) < 4000
    text = f"FILE, record 1: its worker died 3 times while reading it: {'x' * 3000} …"
    assert deadly.marks()["f"] == {"left_out": [[3, 0, text]], "suspects": []}
    assert left_out_rows(left_out_file(tmp_path, "f")) == {3: (0, text)}
    assert of(state=tmp_path).marks() == deadly.marks(), "the next server knows them"


def test_a_life_that_has_only_begun_a_stream_may_be_at_the_same_rows() -> None:
    deadly, row = of(), 1 << ORDINAL_BITS | 7
    deadly.died(entry(row), "words")
    assert deadly.died(entry(-2), "words").expected
    assert not deadly.died(entry(-1), "words").expected, "that is another stream"


@pytest.mark.parametrize(
    "other",
    [entry(5), entry(1, epoch=1), entry(1, partition=1), entry(1, feed="g")],
    ids=["rows", "epoch", "partition", "feed"],
)
def test_a_death_over_other_rows_adds_nothing(other: Entry) -> None:
    deadly = of()
    deadly.died(entry(1), "words")
    assert not deadly.died(other, "words").expected


@pytest.mark.parametrize(
    ("on_bad_example", "fixed", "words"),
    [
        ("fail", 0, "died 3 times while reading it: last words"),
        ("skip", IN_STREAM, "last words\nIt can not be left out: the source can not be read past"),
        ("skip", READ_BEFORE, "last words\nIt can not be left out: batches that were made before"),
    ],
)
def test_rows_that_can_not_be_left_out_fail_the_feed(
    on_bad_example: str, fixed: int, words: str
) -> None:
    deadly = of(on_bad_example)
    for _ in range(2):
        assert deadly.died(entry(1, fixed=fixed), "words").failure is None
    verdict = deadly.died(entry(1, fixed=fixed), "last words")
    assert verdict.failure is not None and verdict.failure[0] == "f" and words in verdict.failure[1]
    assert deadly.marks()["f"]["left_out"] == []


def test_a_list_that_can_not_be_written_fails_the_feed(tmp_path: Path) -> None:
    deadly = of(state=tmp_path)  # there is no feeds/f
    for _ in range(2):
        deadly.died(entry(1), "words")
    verdict = deadly.died(entry(1), "words")
    assert verdict.failure is not None and "left_out.json" in verdict.failure[1]
