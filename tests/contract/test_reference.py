"""docs/reference.md agrees with signatures and docstrings, and has every public name."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
import headrace_server
from headrace_proto import errors

from . import reference_page

_LIGHT = tuple(n for n in reference_page.NAMES if n not in reference_page.NEED)


@pytest.fixture(scope="module")
def page() -> str:
    return reference_page.PAGE.read_text()


@pytest.mark.parametrize("name", _LIGHT)
def test_a_part_of_the_reference_says_what_the_code_says(page, name):
    assert f"<!-- generated: {name} -->" in page
    assert reference_page.rewritten(page, (name,)) == page, "make reference"


def _needing(name: str) -> Any:
    """A part as a parameter; they take seconds to import, and are of make test-tools."""
    marks = [pytest.mark.tf, pytest.mark.tools] if name == "keras" else [pytest.mark.tools]
    return pytest.param(name, marks=marks)


@pytest.mark.filterwarnings("ignore")  # of what it imports
@pytest.mark.parametrize("name", [_needing(name) for name in reference_page.NEED])
def test_a_part_that_needs_a_framework_says_what_the_code_says(page, name):
    package = reference_page.NEED[name]
    pytest.importorskip(package, reason=f"needs {package}")
    assert reference_page.rewritten(page, (name,)) == page, "make reference"


def test_the_reference_leaves_no_public_name_out(page):
    for package, called in ((headrace, "headrace"), (headrace_server, "hs")):
        for name in package.__all__:
            if name != "__version__":
                told = (f"\n### `{called}.{name}`\n", f"\n| `{called}.{name}` |")
                assert any(text in page for text in told), f"{called}.{name} is not told of"


def test_every_error_is_told_of_once_with_what_else_it_is(page):
    rows = [line for line in page.splitlines() if line.startswith("| `headrace.")]
    kinds = sorted(name for name in vars(errors) if name[0].isupper())
    assert sorted(row.split("`")[1] for row in rows) == [f"headrace.{name}" for name in kinds]
    (missing,) = [row for row in rows if row.startswith("| `headrace.FilesMissing` |")]
    assert "| `DataError`, `FileNotFoundError` |" in missing
