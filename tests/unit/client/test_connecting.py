"""``connect``: refusals before any message is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.connecting import _log_use
from headrace_proto.messages import Welcome


def used(*every: tuple[bool, int], others: int = 0) -> Any:
    """Join a feed whose owners report this use of their partitions."""
    welcomes = [
        Welcome(7, "f", [], 1.0, 64, finished=ends, done=done, others=others)
        for ends, done in every
    ]
    sessions = [SimpleNamespace(welcome=welcome) for welcome in welcomes]
    return SimpleNamespace(sessions=sessions, address="tcp://a:1")


def test_a_log_of_a_used_feed_claims_no_commits_where_there_are_none(caplog):
    _log_use(used((True, 0), (False, 0)))  # one partition had no rows
    assert caplog.messages == []
    _log_use(used((True, 0), (True, 0)))
    _log_use(used((True, 0), (False, 2)))
    nothing, begun = caplog.messages
    assert "has no more batches (committed batches: 0); to start it" in nothing
    assert "goes on where others left it (committed batches: 2)" in begun


def test_a_feed_that_others_train_on_goes_on_without_a_log(caplog):
    _log_use(used((True, 5), (False, 0), others=1))  # the first owner's partitions are over
    assert caplog.messages == []
    _log_use(used((True, 5), (False, 2), others=1))  # an earlier feed of this process
    _log_use(used((True, 5), (True, 2), others=1))
    begun, over = caplog.messages
    assert "goes on where others left it (committed batches: 7)" in begun
    assert "has no more batches (committed batches: 7)" in over
