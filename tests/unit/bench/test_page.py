"""A run writes the text between the markers of the page, and changes no other part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.page import BEGIN, END, rewritten, write
from tests.bench.report import Run

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"


def test_only_what_is_between_the_markers_changes(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    run = Run(5, 0.8, absent={"W1: a / b": "no such peer"}, minutes=12.4)
    write(page, run)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}") and text.endswith(f"{END}after\n")
    assert "* W1: a / b: no such peer" in text and "old" not in text
    assert "It took 12 minutes." in text
    assert "](benchmarks.svg)" in text and (tmp_path / "benchmarks.svg").exists()
    assert rewritten(text, run) == text


def test_the_page_of_the_benchmarks_has_the_markers():
    text = PAGE.read_text()
    assert rewritten(text, Run(5, 0.8)) != text


def test_a_page_without_them_is_refused_and_stays(tmp_path: Path):
    page = tmp_path / "benchmarks.md"
    page.write_text(f"{BEGIN}no end")
    with pytest.raises(ValueError, match=r"the page has no .*end"):
        write(page, Run(5, 0.8))
    assert page.read_text() == f"{BEGIN}no end"
