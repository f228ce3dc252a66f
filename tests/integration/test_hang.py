"""Workers that hang and rows that kill them: real processes, real crashes, exact multisets."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.children import gone
from tests.patience import PATIENCE_S, eventually

from . import user_functions_hang as bad

N = 2000


def numbered(n: int = N) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(n)])


def rows(server: hs.Server) -> list[int]:
    with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
        return [i for batch in feed for i in batch["i"].tolist()]


def delivered(
    pipeline: hs.Pipeline, **options: Any
) -> tuple[Counter[int], Mapping[str, int], list[int]]:
    """Return a trainer's batches of a feed, the counts of dropped rows, and the rows in their
    order.
    """
    with hs.run(pipeline, **options) as server:
        got = rows(server)
        assert server.wait(PATIENCE_S)
        return Counter(got), server.stats()["default"]["dropped"], got


def expected(*without: int, times: int = 1) -> Counter[int]:
    return Counter({i: times for i in range(N) if i not in without})


@pytest.mark.parametrize(
    ("pipeline", "function", "words"),
    [
        (numbered().map(bad.exit_at_500), "exit_at_500", "ended with exit code 7"),
        (
            numbered().map(bad.loop_at_500),
            "loop_at_500",
            r"made no progress for 2 s[\s\S]* in loop_at_500",
        ),
        (
            numbered().shuffle(seed=3).map(bad.exit_at_500).options(on_bad_example="skip"),
            "exit_at_500",
            "ended with exit code 7",
        ),
        (
            numbered().map(bad.crash_with_500, vectorized=True).options(on_bad_example="skip"),
            "crash_with_500",
            "was killed by SIGSEGV",
        ),
    ],
    ids=["it exits", "it hangs", "of an order", "of many that a function gets together"],
)
def test_the_feed_fails_and_names_the_row_the_last_words_and_the_remedy(pipeline, function, words):
    """Where bad examples are skipped, too."""
    with hs.run(pipeline.batch(7), worker_timeout_s=2) as server:
        with pytest.raises(headrace.DataError, match=words) as caught:
            rows(server)
        text = str(caught.value)
        assert f"record 500: its worker died 3 times in `{function}`: " in text
        assert "leave the row out by a .filter()" in text
        assert server.wait(PATIENCE_S)  # it is the feed that failed, and not the server


def test_a_filter_leaves_a_row_out_that_kills():
    pipeline = numbered().filter(bad.is_not_500).map(bad.exit_at_500)
    got, dropped, _ = delivered(pipeline.batch(7, allow_smaller_final_batch=True))
    assert got == expected(500) and dropped == {"filtered": 1}


def test_the_restart_budget_does_not_end_a_server_that_is_finding_a_row():
    """Two deaths of other causes and the row's first fill the budget; its second would spend it."""
    with hs.run(numbered().map(bad.exit_at_500).batch(10)) as server:
        for life in range(2):  # or a later one, if the row was quicker
            lives = eventually(
                lambda life=life: [
                    pid
                    for name, pid in server.pids.items()
                    if name.startswith("worker-0-") and int(name[9:]) >= life
                ]
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(lives[-1], signal.SIGKILL)
        with pytest.raises(headrace.DataError, match="record 500: its worker died 3 times"):
            rows(server)
        server.check()


def test_a_function_that_takes_more_memory_than_a_worker_may_makes_a_bad_example():
    pipeline = numbered().map(bad.devour_at_500).batch(7, allow_smaller_final_batch=True)
    pipeline = pipeline.options(on_bad_example="skip")
    got, dropped, _ = delivered(pipeline, worker_memory_bytes=1 << 30)
    assert got == expected(500) and dropped == {"bad:map_failed": 1}


def test_a_stopped_worker_is_replaced_and_the_stream_goes_on_exactly():
    with hs.run(numbered().batch(7, allow_smaller_final_batch=True), worker_timeout_s=2) as server:
        got = []
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            for batch in feed:
                if not got:
                    os.kill(server.pids["worker-0-0"], signal.SIGSTOP)
                got += batch["i"].tolist()
        assert got == list(range(N))


def test_a_stream_that_can_not_be_read_on_stops_the_feed_and_names_the_place():
    pipeline = hs.from_function(bad.two_thousand, features={"i": hs.scalar("int64")}).batch(10)
    with hs.run(pipeline) as server:
        with pytest.raises(headrace.DataError) as caught:
            rows(server)
    text = str(caught.value)
    assert re.match(r"the source \(function\), stream 0, after record 4\d\d: .* died 3 times", text)


# Functions that fork


def test_a_child_that_a_function_forks_and_that_returns_ends_and_the_stream_is_exact():
    with hs.run(numbered().map(bad.forked_at_500).batch(50)) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            batches = [dict(batch) for batch in feed]
        (child,) = (c for batch in batches for c in batch["child"].tolist() if c >= 0)
        assert child > 0 and gone(child)
        assert [i for batch in batches for i in batch["i"].tolist()] == list(range(N))
        assert {p for b in batches for p in b["pid"].tolist()} == {server.pids["worker-0-0"]}
        assert server.wait(PATIENCE_S) and not server.failed_feeds()
