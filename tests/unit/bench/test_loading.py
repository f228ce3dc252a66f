"""Loaded data equals written data, and the time is judged."""

from __future__ import annotations

from pathlib import Path

from tests.bench.loading import _measured, _written, judged, shown


def test_all_examples_are_loaded(tmp_path: Path):
    _written(tmp_path / "0.journal", 20_000)  # more than one record
    measured = _measured(tmp_path / "0.journal", 20_000)
    assert 0 < measured["store_s"] < measured["took_s"]
    assert shown(measured).startswith("20,000 examples of 2 kB: ")
    assert [one.met for one in judged("restart", "a", {**measured, "took_s": 5.1})] == [False]
