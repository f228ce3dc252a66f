"""The desk and the trainer's machine keep the laws of the simulated world, and it finds bugs.

``make world WORLDS=100000`` runs more of them.
"""

from __future__ import annotations

import pytest

from tests.world.bugs import BUGS, find
from tests.world.worlds import check

_WORLDS = 120
_PART = 10
#: Each of these broke a law once, and no other test has what it needs.
_FOUND = (252, 107793, 7000176, 20003616, 20003767, 20021683)


@pytest.mark.parametrize("first", range(0, _WORLDS, _PART))
def test_worlds_keep_the_laws(first):
    for seed in range(first, first + _PART):
        try:
            check(seed)
        except Exception as error:
            error.add_note(f"python -m tests.world --seed {seed}")
            raise


@pytest.mark.parametrize("seed", _FOUND)
def test_a_world_that_broke_a_law_once_keeps_them(seed):
    check(seed)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    seed, _ = find(name)
    assert seed >= 0, f"no world has found {name}"
