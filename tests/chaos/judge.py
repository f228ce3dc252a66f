"""The judgement of a run: the laws that must hold, by trainers' ledgers and the stores at the end.

    committed   tokens in the stores          a row is committed by one token, and by no other
    ok          acknowledged to a trainer     is committed
    stale       refused to a trainer          is not committed
    take        states handed out             are those of a commit of the segment before, and
                                              of the one that stands where the batch is committed
    granted     a token                       is of one batch, in all lives of the server
    kept        a lease                       is not lost by a trainer to whom nothing happened
    unmade      a snapshot                    is refused only while a disk is full

Where states stay with trainers ("kept") segments since the last flush may be trained again: there a
segment is committed once or more, each from a state that its predecessor was left in, and never
again when a flush after it was answered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .feeds import MODES
from .ledger import Line, chained

__all__ = ["Case", "Finding", "Harm", "Verdict", "judge", "share_of"]

Cell = tuple[Any, ...]
_BEGIN = [0, 0]
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A law that was broken."""

    law: str
    text: str


@dataclass(frozen=True, slots=True)
class Harm:
    """A fault that hit a trainer ("t0"), a server ("s0"), or all servers ("")."""

    since: float
    until: float
    to: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """The evidence of a run."""

    mode: str
    wanted: frozenset[Cell] | set[Cell]
    lines: Sequence[Line]
    committed: Sequence[int]  # tokens in the stores
    harms: Sequence[Harm] = ()
    lease_s: float = 1.0
    servers: int = 1
    restless: bool = False  # whether trainers were interrupted
    full: Sequence[Harm] = ()  # times in which a server could store no snapshot


@dataclass(slots=True)
class Verdict:
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, law: str, wrong: Iterable[Any]) -> None:
        """Add a law, and the places where it was broken."""
        cases = list(wrong)
        if cases:
            more = f" and {len(cases) - _SHOWN} more" if len(cases) > _SHOWN else ""
            self.findings.append(Finding(law, f"{', '.join(map(str, cases[:_SHOWN]))}{more}"))


class _Told:
    """The ledger, by token."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.takes: dict[int, Line] = {}
        self.cells: dict[int, list[Cell]] = {}
        self.before: dict[int, list[list[int]]] = {}
        self.after: dict[int, list[list[int]]] = {}
        self.answers: dict[str, Counter[int]] = defaultdict(Counter)
        self.stales: list[Line] = []
        self.flushes: list[Line] = []
        self.errors: list[Line] = []
        self.faults: list[Line] = []
        self.gaps: list[Line] = []
        self.unmade: list[Line] = []
        self.taken_again: list[int] = []
        for line in lines:
            if line.what == "take":
                cells = [tuple(cell) for cell in line.more[0]]
                if self.cells.get(line.token, cells) != cells:
                    self.taken_again.append(line.token)
                self.takes[line.token] = line
                self.cells[line.token] = cells
                self.before[line.token] = line.more[1]
            elif line.what == "send":
                self.answers["send"][line.token] += 1
                if line.more:
                    self.after[line.token] = line.more[0]
            elif line.what == "ok":
                self.answers["ok"][line.token] += 1
            elif line.what == "stale" or (line.what == "fault" and line.more[0] == "stale"):
                self.answers["stale"][line.token] += 1
                self.stales.append(line)
            elif line.what == "fault":
                self.faults.append(line)
            elif line.what == "flush":
                self.flushes.append(line)
            elif line.what == "error":
                self.errors.append(line)
            elif line.what == "gap":
                self.gaps.append(line)
            elif line.what == "unmade":
                self.unmade.append(line)


def share_of(token: int, servers: int) -> int:
    """Return the server that granted a token, by the remainder of its term."""
    return (token >> 32) % servers


def judge(case: Case) -> Verdict:
    """Check all laws in a run; return the verdict."""
    verdict, told = Verdict(), _Told(case.lines)
    committed, kept = set(case.committed), MODES[case.mode].kept
    done: dict[Cell, list[int]] = defaultdict(list)
    for token in sorted(committed):
        for cell in told.cells.get(token, ()):
            done[cell].append(token)
    ok, stale = told.answers["ok"], told.answers["stale"]
    verdict.add("a token is of one batch", told.taken_again)
    verdict.add("what is committed was handed out", committed - told.takes.keys())
    verdict.add("what is committed was sent", committed - told.answers["send"].keys())
    verdict.add("what is acknowledged is committed", ok.keys() - committed)
    verdict.add("what is refused is not committed", stale.keys() & committed)
    verdict.add("nothing is lost", sorted(case.wanted - done.keys(), key=str))
    verdict.add("nothing is there that was not asked for", done.keys() - case.wanted)
    if not kept:
        twice = [f"{cell} by {tokens}" for cell, tokens in done.items() if len(tokens) > 1]
        verdict.add("nothing is committed twice", twice)
    acknowledged = Counter(cell for token in ok for cell in told.cells.get(token, ()))
    if not kept:
        verdict.add("nothing is acknowledged twice", [c for c, n in acknowledged.items() if n > 1])
    early = _judge_states(verdict, told, done, kept) if told.after else 0
    if kept:
        verdict.add("what is flushed is not trained again", _rewound(told))
    if not case.restless:  # an interrupted commit may never be sent: its rows come again
        verdict.add("who leaves has been answered", _unanswered(case.lines, told))
    verdict.add("a lease is kept", _lost_without_cause(case, told))
    verdict.add(
        "a trainer ends well",
        [f"{line.who}: {line.more[0]}: {line.more[1]}" for line in told.errors],
    )
    unmade = [f"{line.who}: {line.more[1]}" for line in told.unmade if not _no_room(case, line)]
    verdict.add("a snapshot is made where disks have room", unmade)
    refused = [f"{line.token}: {line.more}" for line in told.faults]
    verdict.add("no commit is refused for a fault of its own", refused)
    handed = Counter(cell for cells in told.cells.values() for cell in cells)
    verdict.counts = {
        "cells": len(case.wanted),
        "commits": len(committed),
        "acknowledged": len(ok),
        "unheard": len(committed - ok.keys()),
        "redelivered": sum(n - 1 for n in handed.values()),
        "stale": len(stale),
        "answered again": sum(n - 1 for n in ok.values()),
        "handed on early": early,
        "trained again": sum(len(tokens) - 1 for tokens in done.values()),
    }
    return verdict


def _judge_states(verdict: Verdict, told: _Told, done: Mapping[Cell, list[int]], kept: bool) -> int:
    """Compute each state that was handed out or saved again, and compare.

    How many were handed out that were never committed in the end: a server may hand on what is not
    on its disk yet, as long as nothing counts that was made of it.
    """
    committed = {token for tokens in done.values() for token in tokens}
    after: dict[Cell, dict[tuple[int, ...], int]] = defaultdict(dict)  # by token
    for token, states in told.after.items():
        for cell, before, state in zip(told.cells[token], told.before[token], states, strict=True):
            after[cell][tuple(state)] = token
            if chained(before, cell, token) != state:
                verdict.add("a ledger is right", [token])
    wrong, orphans, early = [], [], 0
    for token, cells in told.cells.items():
        for cell, before in zip(cells, told.before[token], strict=True):
            key, number = cell
            if not number:
                if list(before) != _BEGIN:
                    wrong.append(f"{cell} of {token} begins with {before}")
                continue
            parent = after[key, number - 1].get(tuple(before))
            if parent is None:
                wrong.append(f"{cell} of {token} has the state of no commit")
            elif not kept and parent not in done.get((key, number - 1), ()):
                early += 1
                if token in committed:
                    orphans.append(f"{cell} of {token} goes on from {parent}")
    verdict.add("a state is its predecessor's", wrong)
    verdict.add("a commit goes on from a commit", orphans)
    return early


def _rewound(told: _Told) -> list[str]:
    """Return segments that were granted again after the answer to a later flush."""
    flushed: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for line in told.flushes:
        for row in line.more[0]:
            key, number = told.cells[line.token][row]
            flushed[key].append((line.token, number))
    return [
        f"{cell} of {token}, flushed with {flush}"
        for token, cells in told.cells.items()
        for cell in cells
        for flush, number in flushed.get(cell[0], ())
        if token > flush and cell[1] <= number
    ]


def _unanswered(lines: Iterable[Line], told: _Told) -> list[str]:
    """Yield unanswered commits of trainers that left by themselves."""
    left = {line.who for line in lines if line.what == "end"}
    known = {line.token for line in lines if line.what in ("ok", "stale", "fault", "lost")}
    return [
        f"{token} of {take.who}"
        for token, take in told.takes.items()
        if take.who in left and told.answers["send"][token] and token not in known
    ]


def _no_room(case: Case, unmade: Line) -> bool:
    """Return whether a disk was full at a time between a snapshot's request and its refusal."""
    return any(full.since <= unmade.at and full.until >= unmade.more[0] for full in case.full)


def _lost_without_cause(case: Case, told: _Told) -> list[str]:
    """Return batches whose lease ended without a fault of their server or trainer."""
    lost = []
    for line in told.stales:
        take = told.takes.get(line.token)
        parties = ("", line.who.split(".")[0], f"s{share_of(line.token, case.servers)}")
        since = line.at - 3 * case.lease_s if take is None else take.at - 2 * case.lease_s
        harmed = any(
            harm.since <= line.at and harm.until + case.lease_s >= since
            for harm in case.harms
            if harm.to in parties
        )
        paused = any(
            gap.who == line.who and since <= gap.at <= line.at + case.lease_s for gap in told.gaps
        )
        if not harmed and not paused:
            lost.append(f"{line.token} of {line.who}")
    return lost
