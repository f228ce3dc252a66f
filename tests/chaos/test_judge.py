"""The judge alone: a run without fault passes, and each planted fault breaks its law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from .judge import Case, judge
from .ledger import Line, chained

_KEYS = ("a", "b")
_SEGMENTS = 3


def lines_of(token: int, cells: list[list[Any]], before: Any, after: Any, at: float) -> list[Line]:
    return [
        Line(at, "t0.0", "take", token, (cells, before)),
        Line(at + 0.1, "t0.0", "send", token, (after,) if after else ()),
        Line(at + 0.2, "t0.0", "ok", token, ()),
    ]


def segments(mode: str = "segments") -> Case:
    """Return a run of two examples of three segments, both in each batch; the trainer left."""
    lines: list[Line] = []
    states = [[0, 0], [0, 0]]
    for i in range(_SEGMENTS):
        cells: list[list[Any]] = [[key, i] for key in _KEYS]
        token = (1 << 32) + i + 1
        after = [chained(s, cell, token) for s, cell in zip(states, cells, strict=True)]
        lines += lines_of(token, cells, states, after, 100.0 + i)
        states = after
    lines.append(Line(110.0, "t0.0", "end", 0, ()))
    wanted = {(key, i) for key in _KEYS for i in range(_SEGMENTS)}
    return Case(mode, wanted, lines, [(1 << 32) + i + 1 for i in range(_SEGMENTS)])


def rows() -> Case:
    """Return a run of three batches of two rows."""
    lines = [
        line
        for token in (1, 2, 3)
        for line in lines_of(token, [[2 * token], [2 * token + 1]], [], [], 100.0 + token)
    ]
    return Case("plain", {(i,) for i in range(2, 8)}, lines, [1, 2, 3])


def without(case: Case, what: str, token: int) -> Case:
    return replace(case, lines=[x for x in case.lines if (x.what, x.token) != (what, token)])


def more(case: Case, *lines: Line) -> Case:
    return replace(case, lines=[*case.lines, *lines])


def broken(case: Case) -> set[str]:
    return {found.law for found in judge(case).findings}


FIRST = (1 << 32) + 1


def state_of_nobody(case: Case) -> Case:
    """The last batch was handed out with other states, and the trainer went on from these."""
    *_, take, send, ok, end = case.lines
    before = [[5, 5], [5, 5]]
    cells = take.more[0]
    after = [chained(s, cell, take.token) for s, cell in zip(before, cells, strict=True)]
    changed = [replace(take, more=(cells, before)), replace(send, more=(after,)), ok, end]
    return replace(case, lines=[*case.lines[:-4], *changed])


def again(case: Case, token: int = 9 << 32) -> Case:
    """Let a second trainer get the first batch too, and commit it."""
    cells: list[list[Any]] = [[key, 0] for key in _KEYS]
    before = [[0, 0], [0, 0]]
    after = [chained(s, cell, token) for s, cell in zip(before, cells, strict=True)]
    both = more(case, *lines_of(token, cells, before, after, 105.0))
    return replace(both, committed=[*case.committed, token])


BROKEN: dict[str, tuple[str, Callable[[], Case]]] = {
    "a row that no token in the stores is of": (
        "nothing is lost",
        lambda: replace(rows(), committed=[1, 2]),
    ),
    "an acknowledgement of what the stores do not hold": (
        "what is acknowledged is committed",
        lambda: replace(rows(), committed=[1, 2]),
    ),
    "a refusal of what the stores hold": (
        "what is refused is not committed",
        lambda: more(rows(), Line(120.0, "t0.0", "stale", 2, ())),
    ),
    "a token of two batches": (
        "a token is of one batch",
        lambda: more(rows(), Line(120.0, "t1.0", "take", 2, ([[17]], []))),
    ),
    "a commit of what nobody was given": (
        "what is committed was handed out",
        lambda: replace(rows(), committed=[1, 2, 3, 4]),
    ),
    "a commit that nobody has sent": (
        "what is committed was sent",
        lambda: without(rows(), "send", 3),
    ),
    "a row that is no row of the feed": (
        "nothing is there that was not asked for",
        lambda: replace(rows(), wanted={(i,) for i in range(2, 7)}),
    ),
    "a segment of two commits": ("nothing is committed twice", lambda: again(segments())),
    "a segment that two trainers were thanked for": (
        "nothing is acknowledged twice",
        lambda: again(segments()),
    ),
    "a state of nobody": ("a state is its predecessor's", lambda: state_of_nobody(segments())),
    "a state of what was not committed": (
        "a commit goes on from a commit",
        lambda: replace(segments(), committed=[FIRST, FIRST + 2]),
    ),
    "a segment that was flushed, and granted again": (
        "what is flushed is not trained again",
        lambda: again(more(segments("kept"), Line(104.0, "t0.0", "flush", FIRST, ([0],)))),
    ),
    "a lease that was lost by a trainer to whom nothing happened": (
        "a lease is kept",
        lambda: more(rows(), Line(120.0, "t0.0", "stale", 2, ())),
    ),
    "a trainer that ended by an error": (
        "a trainer ends well",
        lambda: more(rows(), Line(120.0, "t0.0", "error", 0, ("ServerError", "no"))),
    ),
    "a commit that was refused as faulty": (
        "no commit is refused for a fault of its own",
        lambda: more(rows(), Line(120.0, "t0.0", "fault", 2, ("state", "no"))),
    ),
    "a snapshot that was refused where all disks had room": (
        "a snapshot is made where disks have room",
        lambda: more(rows(), Line(120.0, "t0.0", "unmade", 0, (119.0, "no"))),
    ),
    "a trainer that left without an answer": (
        "who leaves has been answered",
        lambda: without(segments(), "ok", FIRST),
    ),
}


@pytest.mark.parametrize("case", [rows(), segments(), segments("kept")], ids=lambda c: c.mode)
def test_a_run_without_fault_breaks_no_law(case: Case) -> None:
    assert not judge(case).findings


@pytest.mark.parametrize("what", BROKEN)
def test_a_law_is_broken_by(what: str) -> None:
    law, make = BROKEN[what]
    assert law in broken(make())
