"""A connection that only makes work is refused once, and then ignored."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_proto.errors import ProtocolError
from headrace_proto.messages import Refused
from headrace_server.process import rate_limits
from headrace_server.process.rate_limits import RateLimits
from headrace_server.process.refusals import Refusals
from tests.footprint import entries


class At:
    def __init__(self, most: int = 10) -> None:
        self.said: list[tuple[bytes, Any]] = []
        self.refusals = Refusals()
        self.ended: list[bytes] = []  # connections whose sessions were ended
        self.limits = RateLimits(most, self.refusals, self._say, self.ended.append)

    def _say(self, connection: bytes, message: Any) -> bool:
        self.said.append((connection, message))
        return True

    def garbage(self, connection: bytes, times: int) -> None:
        for _ in range(times):
            self.limits.bad(connection, "a trainer", ProtocolError("no message"), 0.0)

    def kept(self) -> int:
        """Return how much the limits remember."""
        return entries(self.limits) - entries(self.refusals, self.said, self.ended)


def test_garbage_is_answered_once_per_connection_and_mute_after_a_hundred():
    at = At()
    at.garbage(b"a", 99)
    at.garbage(b"b", 1)
    refused = Refused("protocol", "no message")
    assert at.said == [(b"a", refused), (b"b", refused)] and not at.limits.muted
    at.garbage(b"a", 1)
    assert list(at.limits.muted) == at.ended == [b"a"]
    assert at.refusals.counts["garbage"] == 101


def test_messages_outside_of_a_session_are_bounded_per_second():
    at = At(most=3)
    assert [at.limits.bears(b"a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert at.limits.bears(b"b", 0.0)
    ((connection, refused),) = at.said
    assert connection == b"a" and refused.code == "limit"
    assert "max_messages_per_s=3" in refused.text
    assert list(at.limits.muted) == at.ended == [b"a"]
    assert at.refusals.counts["messages"] == 1


def test_a_second_later_as_many_are_allowed_again():
    at = At(most=3)
    assert at.limits.second_is_over(1.0)
    assert all(at.limits.bears(b"a", 1.0) for _ in range(3))
    assert not at.limits.second_is_over(1.9)
    assert at.limits.second_is_over(2.0)
    assert at.limits.bears(b"a", 2.0) and not at.said


def test_a_session_is_silenced_beyond_the_limit_and_not_at_it():
    at = At(most=5)
    assert not at.limits.is_too_much(5, b"a", "trainer 1 (alice)", 0.0)
    assert at.limits.is_too_much(6, b"a", "trainer 1 (alice)", 0.0)
    assert b"a" in at.limits.muted and at.said[0][1].code == "limit"


def test_the_memory_for_bad_connections_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate_limits, "_REMEMBERED", 5)
    at = At()
    for k in range(50):
        at.garbage(b"%d" % k, 1)
    assert at.kept() <= 10
    for k in range(50):
        at.garbage(b"%d" % k, 100)
    assert list(at.limits.muted) == [b"%d" % k for k in range(45, 50)]
    assert at.kept() <= 10


def test_connections_that_continue_are_remembered_before_those_that_came_and_went(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(rate_limits, "_REMEMBERED", 5)
    at = At()
    for k in range(100):
        at.garbage(b"steady", 1)
        at.garbage(b"%d" % k, 1)
    assert b"steady" in at.limits.muted
