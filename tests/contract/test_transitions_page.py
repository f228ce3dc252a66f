"""docs/transitions.md shows the tables as the code has them."""

from __future__ import annotations

import re

from tests.unit.shaping.test_transitions import DOOR

from . import transitions_page


def test_the_diagrams_are_those_of_the_tables() -> None:
    page = transitions_page.PAGE.read_text()
    assert transitions_page.rewritten(page) == page, "make reference"


def test_every_table_has_its_diagram() -> None:
    shown = re.findall(r"<!-- generated: ([\w -]+) -->", transitions_page.PAGE.read_text())
    assert shown == list(transitions_page.TABLES)


def test_a_table_is_drawn_by_state() -> None:
    assert list(transitions_page.drawn(DOOR)) == [
        "open  push  ─► shut  Bang",
        "      ✗ pull: error, it is open already",
        "",
        "shut  push  ─► shut",
        "      pull  ─► open",
        "",
    ]
