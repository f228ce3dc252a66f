"""Requests that are under way when a process of the server dies: each has an answer, or a reason.

    trainers ask ─► the worker is stopped: nothing is answered ─► kill -9 ─► its successor

One server has a feed of every kind, and all requests are under way at the same time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually
from tests.waiting import waits_end_with

from .serving import kill_all

#: The feed of each trainer, and its request.
ASKS: dict[str, tuple[str, Callable[[headrace.Feed], Any]]] = {
    "flush": ("kept", headrace.Feed.flush_states),
    "kept commit": ("kept", headrace.Feed.commit),
    "kept snapshot": ("kept", headrace.Feed.snapshot),
    "kept close": ("kept", headrace.Feed.close),
    "saves": ("arrival", headrace.Feed.commit),
    "states' snapshot": ("arrival", headrace.Feed.snapshot),
    "commit": ("plain", headrace.Feed.commit),
    "snapshot": ("plain", headrace.Feed.snapshot),
    "retarget": ("drawn", lambda feed: feed.set_target_probs([0.25, 0.75])),
    "drain": ("closing", headrace.Feed.drain),
}


def sequences(number: int = 64, **options: Any) -> hs.Pipeline:
    examples = [{"key": f"k{i}", "x": np.arange(400) + i} for i in range(number)]
    return hs.from_examples(examples).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"n": hs.zeros((), "int64")},
        num_unroll=2,
        batch_size=4,
        **options,
    )


def feeds() -> dict[str, hs.Pipeline]:
    numbers = hs.from_examples([{"i": i, "class": i % 2} for i in range(4000)])
    return {
        "kept": sequences(order="lanes", state_placement="trainer"),
        "arrival": sequences(),
        "plain": numbers.batch(4),
        "closing": numbers.batch(4),
        "drawn": numbers.stratified_sample(
            "class", [0.5, 0.5], batch_size=4, init_probs=[0.5, 0.5]
        ),
    }


def work(feed: headrace.Feed, batches: int) -> None:
    for _ in range(batches):
        batch = next(feed)
        if feed.states:
            batch.save_state("n", batch.state("n") + 1)


def flushed(feed: headrace.Feed) -> bool:
    """Train a batch and flush its states; return whether the server took them."""
    try:
        work(feed, 1)
        feed.flush_states()
    except headrace.StaleLease:
        return False
    return True


class Asking:
    """A server with a trainer for each request, which has worked for a while."""

    def __init__(self, tmp_path: Path, workers: int) -> None:
        self._tmp_path = tmp_path
        self._workers = workers
        self.server = self._serve()
        self.feeds = {
            name: headrace.connect(self.server.address, feed=feed, timeout=PATIENCE_S)
            for name, (feed, _) in ASKS.items()
        }
        self._threads = ThreadPoolExecutor(len(ASKS))
        self.asked: dict[str, Future[Any]] = {}

    def _serve(self) -> hs.Server:
        bind = f"ipc://{self._tmp_path}/feeds"
        state = self._tmp_path / "state"
        return hs.run(feeds(), state_dir=state, bind=bind, partitions=2, workers=self._workers)

    def ask(self) -> None:
        """Stop all workers, and have every trainer ask for something."""
        for feed in self.feeds.values():
            work(feed, 3)
            feed.commit()
        for name in ("saves", "commit"):
            work(self.feeds[name], 1)
        for pid in self.workers():
            os.kill(pid, signal.SIGSTOP)
        for name, (_, ask) in ASKS.items():
            self.asked[name] = self._threads.submit(ask, self.feeds[name])
        for name in ASKS:
            eventually(partial(self._under_way, name))

    def _under_way(self, name: str) -> bool:
        """Whether a request was sent and has no answer."""
        sessions = self.feeds[name]._link.sessions
        if any(session.requests.unsaid for session in sessions):
            return False
        waits = any(s.requests._asked or s.member.trainer.unanswered(s.number) for s in sessions)
        return waits or self.asked[name].done()

    def workers(self) -> list[int]:
        return workers_of(self.server)

    def kill_server(self) -> None:
        """Kill all processes at once, and start another server at the same address."""
        kill_all(self.server)
        self.server.close()
        self.server = self._serve()

    def outcome(self, name: str) -> Any:
        """Return the answer to a trainer, or the error."""
        try:
            return self.asked[name].result(PATIENCE_S)
        except headrace.HeadraceError as error:
            return error

    def close(self) -> None:
        for feed in self.feeds.values():
            with contextlib.suppress(headrace.HeadraceError):
                feed.close()
        self.server.close()
        self._threads.shutdown()


def workers_of(server: hs.Server) -> list[int]:
    return [pid for name, pid in server.pids.items() if name.startswith("worker")]


@pytest.fixture(params=[1, 2])
def asking(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Asking]:
    """A server with one worker, and one with two."""
    asking = Asking(tmp_path, request.param)
    yield asking
    asking.close()


def check_all(asking: Asking, why: str) -> None:
    """Check that states of trainers are refused with a reason, and that all else succeeds."""
    for name in ("flush", "kept commit", "kept snapshot", "kept close"):
        refused = asking.outcome(name)
        assert isinstance(refused, headrace.StaleLease), (name, refused)
        assert "were not handed over" in str(
            refused
        ) and "go on from the states that the server has" in str(refused)
    for name in ("saves", "commit", "drain"):
        assert asking.outcome(name) is None, name
    for name in ("states' snapshot", "snapshot"):
        token = asking.outcome(name)
        assert isinstance(token, dict) and token["snapshot"], (name, token)
    since = asking.outcome("retarget")
    assert isinstance(since, dict) and sorted(since) == [0, 1], since


def test_a_worker_that_dies_under_requests_leaves_none_without_an_answer(asking: Asking):
    """The trainer whose flush was refused goes on, and flushes the states of its next lanes."""
    asking.ask()
    for pid in asking.workers():
        os.kill(pid, signal.SIGKILL)
    check_all(asking, "the states of lanes were not handed over")
    feed = asking.feeds["flush"]
    feed.flush_states()  # the refused states are gone
    assert any(flushed(feed) for _ in range(8)), "the batches that it had are at most 3"
    for name in ("saves", "commit", "retarget"):
        work(asking.feeds[name], 2)


def test_a_server_that_dies_under_requests_leaves_none_without_an_answer(asking: Asking):
    asking.ask()
    asking.kill_server()
    check_all(asking, "the states of lanes were not handed over")


def test_a_front_that_dies_under_requests_ends_all_of_them_with_a_reason(tmp_path: Path):
    """The server ends with its locator; a trainer waits for the next one as long as it may."""
    numbers = hs.from_examples([{"i": i} for i in range(400)]).batch(4)
    with (
        hs.run(numbers, state_dir=tmp_path, workers=2, lease_ttl_s=4) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        feed = headrace.connect(server.address, timeout=PATIENCE_S)
        locator = server.pids["locator"]
        for worker in workers_of(server):
            os.kill(worker, signal.SIGSTOP)
        lost = "was lost: .* the answer to snapshot"
        with waits_end_with(lost):
            asked = threads.submit(feed.snapshot), threads.submit(server.snapshot)
            eventually(lambda: [*(tmp_path / "snapshots" / "default").glob("*.part")])
            os.kill(locator, signal.SIGKILL)
            with pytest.raises(headrace.ConnectionLost, match=lost):
                asked[0].result(PATIENCE_S)
        for snapshot in (asked[1], threads.submit(server.snapshot)):
            with pytest.raises(headrace.ServerError, match="locator was killed by SIGKILL"):
                snapshot.result(PATIENCE_S)
        with pytest.raises(headrace.ServerError, match="locator was killed by SIGKILL"):
            server.stats()
        feed.close()
