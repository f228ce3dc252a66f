"""Desks with trainers, and logs with producers, keep the laws of their worlds, which find bugs.

The feeds of the last kind train sequences that still grow.

``make world WORLDS=100000`` runs more worlds of desks.
"""

from __future__ import annotations

import pytest

from tests.world import bugs, live_bugs, live_feed, log_bugs, logs, worlds

CHECKS = {"desk": worlds.check, "log": logs.check, "live": live_feed.check_live}
BUGS = {"desk": bugs, "log": log_bugs, "live": live_bugs}
_WORLDS = {"desk": 60, "log": 40, "live": 20}
_PART = 10
#: Each of these broke a law once, and no other test has what it needs.
_FOUND = {
    "desk": (252, 107793, 7000176, 7100338, 7100441, 20003616, 20003767, 20021683),
    "log": (547, 1013, 1094, 1123, 5071, 5171),
    "live": (59, 83, 84, 138, 143, 240, 335, 2236, 2263),
}


@pytest.mark.parametrize(
    ("kind", "first"), [(k, n) for k, most in _WORLDS.items() for n in range(0, most, _PART)]
)
def test_worlds_keep_the_laws(kind, first):
    for seed in range(first, first + _PART):
        try:
            CHECKS[kind](seed)
        except Exception as error:
            error.add_note(f"tests.world: {kind} {seed}")
            raise


@pytest.mark.parametrize(("kind", "seed"), [(k, n) for k, seeds in _FOUND.items() for n in seeds])
def test_a_world_that_broke_a_law_once_keeps_them(kind, seed):
    CHECKS[kind](seed)


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, of in BUGS.items() for n in of.BUGS])
def test_a_planted_bug_is_found(kind, name):
    seed, _ = BUGS[kind].find(name)
    assert seed >= 0, f"no world has found {name}"
