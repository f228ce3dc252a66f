"""docs/transitions.md shows the tables as the code has them."""

from __future__ import annotations

import re

from headrace_server.core.transitions import Transitions

from . import transitions_page


def test_the_diagrams_are_those_of_the_tables() -> None:
    page = transitions_page.PAGE.read_text()
    assert transitions_page.rewritten(page) == page, "make reference"


def test_every_table_has_its_diagram() -> None:
    shown = re.findall(r"<!-- generated: ([\w -]+) -->", transitions_page.PAGE.read_text())
    assert shown == list(transitions_page.TABLES)


def test_a_table_is_drawn_by_state() -> None:
    door = Transitions(
        "door",
        ("open", "shut"),
        moves={
            "push": {"open": ("shut", "Bang"), "shut": ("shut", None)},
            "pull": {"shut": ("open", None)},
        },
        errors={"pull": ("is open already", ("open",))},
    )
    assert list(transitions_page.drawn(door)) == [
        "open  push  ─► shut  Bang",
        "      ✗ pull: error, it is open already",
        "",
        "shut  push  ─► shut",
        "      pull  ─► open",
        "",
    ]
