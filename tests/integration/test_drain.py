"""A trainer closes a feed's input: rows already read are handed out, and no more are read."""

from __future__ import annotations

import headrace_server as hs
from tests.patience import PATIENCE_S

from .serving import connect, kill_worker, serving


def endless(batch_size: int = 4, **options: bool) -> hs.Pipeline:
    examples = hs.from_examples([{"i": k} for k in range(10)])
    return examples.repeat().batch(batch_size, **options)


def test_a_drained_feed_hands_out_what_was_read_and_ends():
    with serving(endless(allow_smaller_final_batch=True)) as server:
        with connect(server) as feed:
            rows = [*next(feed)["i"].tolist()]
            feed.drain()
            for batch in feed:
                rows += batch["i"].tolist()
        assert server.wait(PATIENCE_S)
        assert server.dropped == {"default": {}}
    assert rows == [k % 10 for k in range(len(rows))]


def test_without_smaller_batches_the_remainder_is_dropped_and_counted():
    with serving(endless(batch_size=7)) as server:
        with connect(server) as feed:
            feed.drain()
            rows = [i for batch in feed for i in batch["i"].tolist()]
        assert server.wait(PATIENCE_S)
        dropped = server.dropped["default"].get("remainder", 0)
    assert len(rows) % 7 == 0 and dropped < 7


def test_cancel_drops_what_is_not_yet_a_batch_and_counts_it():
    with serving(endless(batch_size=7, allow_smaller_final_batch=True)) as server:
        with connect(server) as feed:
            feed.drain(cancel=True)
            rows = [i for batch in feed for i in batch["i"].tolist()]
        assert server.wait(PATIENCE_S)
        dropped = server.dropped["default"].get("cancelled", 0)
    assert len(rows) % 7 == 0
    assert set(server.dropped["default"]) <= {"cancelled"} and dropped >= 0


def test_a_second_drain_is_harmless_and_other_trainers_end_too():
    with hs.run(endless(), partitions=3, workers=2) as server:
        with connect(server) as one, connect(server) as other:
            next(one), next(other)
            one.drain()
            one.drain()
            other.drain(cancel=True)
            other.close()
            for _ in one:
                pass
        with connect(server) as late:
            assert list(late) == []
        assert server.wait(PATIENCE_S)


def test_a_drain_is_remembered_when_the_worker_dies_after_it():
    with hs.run(endless()) as server:
        with connect(server, prefetch=0) as feed:
            next(feed)
            feed.drain()
            kill_worker(server)
            rows = [i for batch in feed for i in batch["i"].tolist()]
        assert server.wait(PATIENCE_S)
    assert rows == [k % 10 for k in range(4, 4 + len(rows))]
