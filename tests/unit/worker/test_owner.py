"""The owner's wait for trainers: how long it was, with the checks that it spent it in."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_server.worker.owner import Owner


class Waiting:
    """An owner that waits; each check takes a second, and some end with a message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.heard = False
        self.waits: list[float] = []
        self.rests = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        stores = SimpleNamespace(ripe=False, writing=False, due_in_s=1.0)
        owner: Any = Owner.__new__(Owner)
        owner._poller = SimpleNamespace(poll=lambda at_most_s: [(1, 1)] if self.heard else [])
        owner._partitions = SimpleNamespace(
            stores=stores,
            prepare=lambda poll: None,
            unchecked={"partition"},
            check_ahead=None,
            rest=self._rest,
        )
        owner._spin = SimpleNamespace(recent_s=1.0, rested=self.waits.append)
        owner._switchboard = SimpleNamespace(act=lambda: None)
        owner._outbox = SimpleNamespace(due_in_s=1.0)
        owner._socket = SimpleNamespace(sending=False)
        owner._step = self._check
        owner._checked_s = 0.0
        self._owner, self._next = owner, False

    def _check(self, *_: Any) -> None:
        self.now += 1.0
        self.heard = self._next

    def _rest(self, *_: Any) -> list[tuple[int, int]]:
        self.rests += 1
        return [(1, 1)]

    def checks(self, heard: bool) -> None:
        """Let it check, until a message comes or all is checked."""
        self.heard, self._next = False, heard
        assert bool(self._owner._idle(None)) == heard

    def rest(self) -> None:
        """Let it rest until a message comes: all is checked."""
        self.heard, self._owner._partitions.unchecked = False, set()
        assert self._owner._idle(None)
        self._owner._partitions.unchecked = {"partition"}


def test_a_wait_counts_its_checks_and_not_those_of_a_wait_that_ended_with_a_rest(
    monkeypatch: pytest.MonkeyPatch,
):
    waiting = Waiting(monkeypatch)
    waiting.checks(heard=False)
    waiting.checks(heard=True)
    assert waiting.waits == [2.0]
    waiting.checks(heard=False)
    waiting.rest()
    waiting.checks(heard=True)
    assert waiting.waits == [2.0, 1.0] and waiting.rests == 1
