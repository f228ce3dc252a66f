"""Every value arrives unchanged on both ways, and every wait has an end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually

from .serving import connect, serving, trainers_of
from .streams import every_dtype, frozen_array, padded

_N = 22


def numbered(n: int, batch_size: int = 1) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).batch(batch_size, True)


# Values


def test_every_dtype_and_every_ragged_row_arrives_as_it_was(way):
    examples = every_dtype(_N)
    with (
        serving(hs.from_examples(examples).batch(4, True, dynamic_pad=True)) as server,
        connect(server) as feed,
    ):
        assert feed.local == (way == "shared memory")
        seen = 0
        for batch in feed:
            rows = examples[seen : seen + 4]
            seen += batch.rows
            assert set(batch) == set(rows[0])
            for name in batch:
                got, want = frozen_array(batch[name]), frozen_array(padded(rows, name))
                assert got == want, name
                spec = feed.schema[name]
                assert spec.dtype == got[0] and spec.admits(got[1]), name
        assert seen == _N


# Addresses


def test_a_wait_ends_when_another_thread_closes_the_feed():
    with serving(numbered(1)) as server, connect(server, prefetch=0) as other:
        next(other)  # the only batch, so that nothing comes and the feed does not end
        feed = connect(server, prefetch=0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, feed)
            eventually(lambda: any(trainer["requests"] for trainer in trainers_of(server)))
            feed.close()
            with pytest.raises(headrace.FeedClosed, match="closed while this thread waited"):
                waiting.result(PATIENCE_S)


# Names of feeds


# Prefetch


@pytest.mark.parametrize(
    ("prefetch", "way"),
    [(0, "shared memory"), (8, "shared memory"), (2, "tcp")],
    indirect=["way"],
)
def test_a_trainer_never_holds_more_than_prefetch_and_one(prefetch, way):
    """1. The first trainer takes one batch and works on it for long.
    2. The second gets all but what the first may hold, without waiting for it.
    3. The first leaves: what it held ahead comes to the second, what it used does not.
    """
    n = 24
    with serving(numbered(n)) as server, connect(server, prefetch=0) as second:
        first = connect(server, prefetch=prefetch)
        used = int(next(first)["i"][0])
        got = [int(next(second)["i"][0]) for _ in range(n - (prefetch + 1))]
        assert used not in got
        first.close()
        got += [int(batch["i"][0]) for batch in second]
        assert sorted([*got, used]) == list(range(n))
