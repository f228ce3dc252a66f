"""The use of a feed covers all servers that had it."""

from __future__ import annotations

import time

from headrace_server.worker.usage import FeedUse, Usage


def test_a_feed_that_nobody_used_has_no_times():
    assert FeedUse().total(False, 0) == Usage(False, 0, 0.0, 0.0)


def test_earlier_servers_and_this_one_are_added_up():
    use, before = FeedUse(), time.time()
    assert not use.before
    use.add(3, 100.0, 200.0)
    use.add(4, 50.0, 150.0)
    assert use.before and use.total(False, 0) == Usage(False, 7, 50.0, 200.0)
    use.now()
    use.now()
    finished, batches, since, until = use.total(True, 2)
    assert (finished, batches, since) == (True, 9, 50.0) and before <= until <= time.time()
