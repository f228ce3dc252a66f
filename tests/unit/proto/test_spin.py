"""Polling before sleep pays for short waits, and is given up where it does not."""

from __future__ import annotations

import itertools

import pytest

from headrace_proto.spin import Spin

US = 1e-6


def budgets(spin: Spin, wait_s: float, times: int, now: float = 0.0) -> list[float]:
    """Return the polls of this many waits in a row, each of which takes ``wait_s``."""
    given = []
    for i in range(times):
        given.append(spin.budget_s(now + i * wait_s))
        spin.waited(wait_s, now + (i + 1) * wait_s)
    return given


@pytest.mark.parametrize(("cores", "wait_s"), [(1, 100 * US), (1.5, 100 * US), (2, 500 * US)])
def test_one_core_a_quota_and_long_waits_are_slept_through(cores, wait_s):
    assert not any(budgets(Spin(cores), wait_s, 100))


def test_vain_spins_end_spinning_and_it_is_tried_again_ever_more_rarely():
    """1 a few spins are vain, 2 there is none for a while, 3 they are vain, 4 none for longer."""
    spin = Spin(2)
    budgets(spin, 100 * US, 1)
    tried: list[float] = []
    for i in range(1_000_000):
        now = i * 200 * US
        budget = spin.budget_s(now)
        if budget:
            tried.append(now)
        spin.waited(1.1 * budget or 100 * US, now)
    pauses = [round(b - a, 3) for a, b in itertools.pairwise(tried) if b - a > 0.01]
    assert len(tried) < 200, "in 200 seconds"
    assert pauses == sorted(pauses) and pauses[0] > 0.2 and pauses[-1] <= 31


class Peer:
    """A peer that answers this long after each wait has begun; a poll takes a microsecond."""

    def __init__(self, answers_s: float) -> None:
        self.now, self.answers_s = 0.0, answers_s
        self.slept: list[float] = []  # seconds that polls might have slept
        self.polls = 0

    def clock(self) -> float:
        return self.now

    def wait(self, spin: Spin, expects: bool = True, at_most_s: float = 0.1) -> str:
        comes = self.now + self.answers_s

        def poll(seconds: float) -> str:
            self.polls += 1
            if seconds:
                self.slept.append(seconds)
            self.now = min(max(self.now + US, comes), self.now + seconds + US)
            return "news" if self.now >= comes else ""

        return spin.wait(poll, at_most_s, expects, self.clock)


def test_a_wait_whose_answer_is_late_sleeps_after_its_budget():
    spin, peer = Spin(2), Peer(150 * US)
    peer.wait(spin)
    peer.answers_s = 0.05
    assert peer.wait(spin) == "news" and peer.slept == [0.1, 0.1]
    assert 250 < peer.polls < 350, "twice as long as the wait before"


def test_where_nobody_answers_each_wait_polls_once():
    spin, peer = Spin(2), Peer(100 * US)
    peer.wait(spin)
    peer.answers_s = 10.0
    for _ in range(4):  # it takes some to find that nobody comes
        assert peer.wait(spin) == ""
    peer.polls = 0
    assert [peer.wait(spin) for _ in range(20)] == [""] * 20 and peer.polls == 20
