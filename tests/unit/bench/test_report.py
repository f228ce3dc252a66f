"""The table has the measurements, in the units of a row, and whether each aim was met."""

from __future__ import annotations

import json

import pytest

from tests.bench.pairs import Comparison, Outcome
from tests.bench.report import Run, as_json, from_json, table


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


def run(*comparisons: Comparison) -> Run:
    return Run(3, 1.5, [outcome(comparison) for comparison in comparisons])


def split(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def cells(comparison: Comparison) -> list[str]:
    return split(medians(run(comparison))[2])


def medians(told: Run) -> list[str]:
    """The lines of the table of all windows."""
    lines = table(told).splitlines()
    return lines[next(at for at, line in enumerate(lines) if "(min–max)" in line) :]


def test_a_row_has_medians_in_rows_per_second_and_the_spread_of_the_ratios():
    row = cells(Comparison("W1", "ours", "theirs", rows=256, nbytes=5e5))
    assert row == [
        "W1",
        "ours / theirs",
        "5,120 rows",
        "2,560 rows",
        "20 / 10",
        "10 / 5",
        "2.00 (1.00–3.00)",
        "",
        "2.00 / 4.00",
        "0.50",
        "6 / 10",
        "12 / 20",
        "100 / 100",
        "50 / 50",
    ]


@pytest.mark.parametrize(("aim", "said"), [(None, ""), (2.0, "≥ 2 met"), (2.5, "≥ 2.5 missed")])
def test_an_aim_is_met_by_the_median_of_the_ratios(aim: float | None, said: str):
    assert cells(Comparison("W1", "ours", "theirs", aim))[7] == said


def test_a_sampler_shows_the_rows_that_it_read_beside_those_it_handed_over():
    row = cells(Comparison("sampling", "ours", "theirs", rows=10, read=5.0))
    assert row[2:4] == ["200 rows of 1,000 read", "100 rows of 500 read"]


def test_big_images_are_counted_in_batches():
    assert cells(Comparison("W3", "ours", "theirs", rows=128))[2] == "20 batches"


def test_steps_are_counted_in_steps():
    assert cells(Comparison("W4", "ours", "theirs", rows=32))[2:4] == ["20 steps", "10 steps"]


def test_several_aims_of_one_row_are_judged_each_for_itself():
    said = cells(Comparison("W1", "ours", "theirs", 2.0, cpu=0.4, p99_us=12.0))[7]
    assert said == "≥ 2 met; CPU ≤ 0.4 missed; p99 ≤ 12 µs met"


def test_every_row_has_as_many_cells_as_the_head_and_latencies_have_no_rates():
    lines = medians(run(Comparison("W1", "a", "b"), Comparison("latency", "c", "d", latency=True)))
    assert len({line.count("|") for line in lines}) == 1
    assert split(lines[3])[2:7] == [""] * 5


def test_the_targets_stand_first_each_with_its_figure():
    told = run(Comparison("W1", "a", "b", 2.0, cpu=0.4), Comparison("W1", "a", "c"))
    told.alone["restart: headrace restart"] = {"took_s": [0.5, 0.25, 2.0], "p50_s": 0.5}
    assert [split(line) for line in table(told).splitlines()[2:5]] == [
        ["W1: a / b", "rate", "≥ 2", "2.00", "met"],
        ["W1: a / b", "CPU", "≤ 0.4", "0.50", "**missed**"],
        ["restart: headrace restart", "p50", "≤ 1 s", "0.50 s", "met"],
    ]


def test_measurements_without_a_peer_are_reported_in_words():
    told = run(Comparison("W1", "a", "b"))
    told.alone["W1 memory: headrace shm tf"] = {
        "peak_mb": 250.0,
        "epochs": 12.0,
        "mapped_mb": 60.0,
        "first_mb": 100.0,
        "last_mb": 101.0,
    }
    last = table(told).splitlines()[-1]
    assert last.startswith("* W1 memory: headrace shm tf: at most 250 MB in 12 epochs")
    assert [one.met for one in told.judged()] == [False, True]


def test_times_between_batches_of_several_trainers_are_not_reported():
    several = outcome(Comparison("W1", "a", "b", shares=0.5))
    for window in several.ours:
        window["taken"] = [3, 4]
    row = split(medians(Run(3, 1.5, [several]))[2])
    assert row[7] == "shares within 50% met" and row[10:12] == ["", ""]


def test_missed_targets_are_listed():
    text = table(run(Comparison("W1", "ours", "theirs", 3.0, cpu=0.4)))
    assert "0 of 2 targets are met. Missed:" in text
    assert "* W1: ours / theirs: CPU 0.50, wanted ≤ 0.4" in text
    assert "* W1: ours / theirs: rate 2.00, wanted ≥ 3" in text


def test_a_report_without_missed_targets_says_that():
    assert "All 1 targets are met." in table(run(Comparison("W1", "ours", "theirs", 1.0)))


def test_comparisons_that_did_not_run_are_listed_with_their_last_error():
    broken = run(Comparison("W1", "ours", "theirs"))
    broken.absent["W2: ours / gone"] = "Traceback\n  File x\nImportError: no | module\n\n"
    assert table(broken).splitlines()[-1] == "* W2: ours / gone: ImportError: no / module"


def test_the_json_holds_every_window():
    plain = json.loads(as_json(run(Comparison("W1", "ours", "theirs"))))
    assert [w["batches_per_s"] for w in plain["outcomes"][0]["ours"]] == [30, 20, 10]
    assert plain["machine"]["cores"] >= 1


def test_a_stored_run_gives_the_same_report_again():
    first = run(Comparison("W1", "ours", "theirs", 3.0))
    again = from_json(as_json(first))
    assert table(again) == table(first) and as_json(again) == as_json(first)
