"""The judge alone: a run without fault passes, and each planted fault breaks its law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from .judge import Case, Harm, judge
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


def test_what_was_committed_and_not_heard_of_is_no_fault_where_the_trainer_was_killed() -> None:
    case = replace(without(rows(), "ok", 2), lines=[*without(rows(), "ok", 2).lines])
    verdict = judge(case)
    assert not verdict.findings and verdict.counts["unheard"] == 1


def test_where_states_stay_with_trainers_what_was_not_flushed_may_be_trained_again() -> None:
    assert not broken(again(segments("kept")))


@pytest.mark.parametrize("to", ["", "t0"])
def test_a_lease_may_be_lost_by_who_was_harmed(to: str) -> None:
    case = more(without(rows(), "ok", 3), Line(104.0, "t0.0", "stale", 3, ()))
    case = replace(case, committed=[1, 2], wanted={(i,) for i in range(2, 6)})
    assert broken(case) == {"a lease is kept"}
    assert not broken(replace(case, harms=[Harm(103.0, 103.5, to)]))
    assert broken(replace(case, harms=[Harm(103.0, 103.5, "t1")]))
    assert broken(replace(case, harms=[Harm(50.0, 60.0, to)]))


def test_ranks_of_the_last_run_have_equal_numbers_of_batches() -> None:
    """Batch 3 is of another trainer of the same rank, and batch 1 of an earlier run."""
    case = rows()
    joins = [("t0.0", 1, 0), ("t0.1", 2, 0), ("t1.0", 2, 1)]
    of = {1: "t0.0", 2: "t1.0", 3: "t0.1"}
    lines = [replace(line, who=of[line.token]) for line in case.lines]
    case = more(
        replace(case, lines=lines),
        *(Line(99.0, who, "join", 0, (True, run, rank)) for who, run, rank in joins),
    )
    assert broken(case) == set()
    assert broken(replace(case, committed=[1, 2])) == {
        "nothing is lost",
        "what is acknowledged is committed",
        "ranks have equal numbers of batches",
    }


def test_as_many_cells_may_be_missing_as_incomplete_rounds_have() -> None:
    case = replace(rows(), wanted={(i,) for i in range(2, 10)})
    assert broken(replace(case, spare=2)) == set()
    assert broken(replace(case, spare=1)) == {"nothing is lost"}


def test_an_interrupted_commit_needs_no_answer() -> None:
    case = without(segments(), "ok", FIRST)
    assert broken(case) == {"who leaves has been answered"}
    assert broken(replace(case, restless=True)) == set()


@pytest.mark.parametrize(("since", "until"), [(90.0, 119.5), (119.5, 119.7), (119.5, 130.0)])
def test_a_snapshot_may_be_refused_where_a_disk_was_full_since_it_was_asked_for(
    since: float, until: float
) -> None:
    case = more(rows(), Line(120.0, "t0.0", "unmade", 0, (119.0, "no")))
    assert not broken(replace(case, full=[Harm(since, until, "s1")]))
    before, after = Harm(90.0, 118.9, "s0"), Harm(120.1, 130.0, "s0")
    assert broken(replace(case, full=[before, after])) == {
        "a snapshot is made where disks have room"
    }
