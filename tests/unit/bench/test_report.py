"""The table says what was measured, in the units of a row, and whether the aim was met."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.pairs import Comparison, Outcome
from tests.bench.report import append_to_log, as_json, log_entry, table


def window(rate: float, cpu: float = 1.0, p50: float = 10.0) -> dict[str, float]:
    return {
        "batches_per_s": rate,
        "cpu_s_per_1000": cpu,
        "p50_us": p50,
        "p99_us": 2 * p50,
        "peak_rss_mb": 100.0,
        "pss_beyond_framework_mb": 50.0,
    }


def outcome(comparison: Comparison) -> Outcome:
    ours = [window(30, 1.0, 5), window(20, 2.0, 7), window(10, 3.0, 6)]
    return Outcome(comparison, ours, [window(10, 4.0)] * 3, [0.5, 2.5, 1.0])


def cells(comparison: Comparison) -> list[str]:
    return [cell.strip() for cell in table([outcome(comparison)]).splitlines()[-1].split("|")[1:-1]]


def test_a_row_has_medians_in_rows_per_second_and_the_spread_of_the_ratios():
    row = cells(Comparison("W1", "ours", "theirs", rows=256))
    assert row[:5] == [
        "W1",
        "ours / theirs",
        "5,120 rows",
        "2,560 rows",
        "2.00 (1.00–3.00)",
    ]
    assert row[6:8] == ["2.00 / 4.00", "0.50"]


@pytest.mark.parametrize(("aim", "said"), [(None, ""), (2.0, "2 met"), (2.5, "2.5 missed")])
def test_an_aim_is_met_by_the_median_of_the_ratios(aim: float | None, said: str):
    assert cells(Comparison("W1", "ours", "theirs", aim))[5] == said


def test_a_sampler_shows_the_rows_that_it_read_beside_those_it_handed_over():
    row = cells(Comparison("sampling", "ours", "theirs", rows=10, read=5.0))
    assert row[2:4] == ["200 rows of 1,000 read", "100 rows of 500 read"]


def test_big_images_are_counted_in_batches():
    assert cells(Comparison("W3", "ours", "theirs", rows=128))[2] == "20 batches"


def test_steps_are_counted_in_steps_and_told_one_by_one_beside_the_recorded_rate():
    lines = table([outcome(Comparison("W4", "ours", "theirs", 1.5, rows=32))]).splitlines()
    assert "| 20 steps | 10 steps |" in lines[2]
    assert lines[3] == ""
    assert "1,031 steps/s (recorded elsewhere)" in lines[4]
    assert lines[6:] == ["| ours | 6 | 12 | 0.02 |", "| theirs | 10 | 20 | 0.01 |"]


def test_every_row_has_as_many_cells_as_the_head():
    lines = table([outcome(Comparison("W1", "a", "b")), outcome(Comparison("W2", "c", "d"))])
    assert len({line.count("|") for line in lines.splitlines()}) == 1


def test_latencies_stand_in_a_table_of_their_own():
    text = table([outcome(Comparison("latency", "ours", "theirs", latency=True))])
    assert text.splitlines() == [
        "| one batch at a time | p50 µs | p99 µs |",
        "| --- | --- | --- |",
        "| ours | 6 | 12 |",
        "| theirs | 10 | 20 |",
    ]


def test_an_entry_tells_the_load_and_is_added_at_the_end(tmp_path: Path):
    log = tmp_path / "log.md"
    log.write_text("# Log\n")
    entry = log_entry([outcome(Comparison("W1", "ours", "theirs"))], 3, 1.5)
    append_to_log(log, entry)
    assert "0.5–2.5 (median 1.0" in entry
    assert "3 pairs of 1.5 s" in entry
    assert log.read_text() == "# Log\n" + entry


def test_the_json_holds_every_window():
    plain = json.loads(as_json([outcome(Comparison("W1", "ours", "theirs"))]))
    assert [w["batches_per_s"] for w in plain["outcomes"][0]["ours"]] == [30, 20, 10]
    assert plain["machine"]["cores"] >= 1
