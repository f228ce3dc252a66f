"""The use of a feed covers all servers that had it."""

from __future__ import annotations

from headrace_server.worker.served_feed import Usage, usage_of


def test_a_feed_that_nobody_used_has_no_times():
    assert usage_of(True, [None, None]) == Usage(True, 0, 0.0, 0.0)


def test_commits_of_all_partitions_are_added_up():
    stored = [[3, 100.0, 200.0, 12], None, [4, 50.0, 150.0]]
    assert usage_of(False, stored) == Usage(False, 7, 50.0, 200.0)
