"""A table of transitions answers every event in every state, and gives the reason of a refusal."""

from __future__ import annotations

import pytest

from headrace_server.shaping.transitions import IllegalEvent, Transitions

DOOR = Transitions(
    "door",
    ("open", "shut"),
    moves={
        "push": {"open": ("shut", "Bang"), "shut": ("shut", None)},
        "pull": {"shut": ("open", None)},
    },
    errors={"pull": ("is open already", ("open",))},
)


def test_an_event_leads_to_a_state_and_an_effect():
    assert DOOR.follow("push", "open", "door 3") == ("shut", "Bang")


def test_an_event_that_a_state_does_not_allow_is_an_error_that_names_the_state():
    assert DOOR.follow("pull", "shut", "door 3") == ("open", None)
    with pytest.raises(IllegalEvent, match=r"^door 3 is open already: it is open$"):
        DOOR.follow("pull", "open", "door 3")


@pytest.mark.parametrize(
    ("moves", "errors", "what"),
    [
        ({"push": {"open": ("shut", None)}}, {}, "one answer to 'push' in each"),
        ({"push": {"open": ("shut", None)}}, {"push": ("no", ("open", "shut"))}, "one answer"),
        ({"push": {"open": ("gone", None)}}, {"push": ("no", ("shut",))}, "none of its states"),
        ({}, {"pull": ("no", ("shut",))}, "one answer to 'pull'"),
    ],
    ids=["a hole", "two answers", "an unknown state", "an error alone"],
)
def test_a_table_with_a_hole_is_refused(moves, errors, what):
    with pytest.raises(ValueError, match=what):
        Transitions("door", ("open", "shut"), moves, errors)
