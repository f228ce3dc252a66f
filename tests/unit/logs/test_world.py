"""A log keeps the laws of its simulated world, which finds bugs."""

from __future__ import annotations

import pytest

from tests.world.log_bugs import BUGS, find
from tests.world.logs import check

_WORLDS = 80
_PART = 10
#: Each of these broke a law once.
_FOUND = (547, 1094, 1123, 5071, 5171)


@pytest.mark.parametrize("first", range(0, _WORLDS, _PART))
def test_worlds_keep_the_laws(first):
    for seed in range(first, first + _PART):
        try:
            check(seed)
        except Exception as error:
            error.add_note(f"tests.world.logs.check({seed})")
            raise


@pytest.mark.parametrize("seed", _FOUND)
def test_a_world_that_broke_a_law_once_keeps_them(seed):
    check(seed)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    seed, _ = find(name)
    assert seed >= 0, f"no world has found {name}"
