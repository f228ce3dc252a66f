"""Ranks stay in step when trainers die or the server restarts, at any progress of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from tests.ports import free_port

from .processes import Process, trainer
from .test_plain_owners import bucketed

_AHEAD, _BEHIND = 9, 3


class Site:
    """A server that can be started again at its address, and trainers of two ranks."""

    def __init__(self, directory: Path, durable: bool) -> None:
        self._options: dict[str, Any] = {"bind": f"tcp://127.0.0.1:{free_port()}", "partitions": 5}
        if durable:
            self._options["state_dir"] = directory / "state"
        self._stack = ExitStack()
        self.go_on = directory / "go on"
        self.server: hs.Server

    def serve(self, workers: int) -> None:
        """Start a server, in place of one that is there."""
        self._stack.close()
        self.server = self._stack.enter_context(
            hs.run(bucketed(), workers=workers, **self._options)
        )

    def rank(self, rank: int, *options: str) -> Process:
        """Start the trainer of a rank."""
        coordinated = "--rank", str(rank), "--world-size", "2", "--prefetch", str(1 + 3 * rank)
        return trainer(self.server.address, *coordinated, *options)

    def held(self, rank: int, batches: int) -> Process:
        """Start a trainer; wait until it has a batch in hand and has committed those before it."""
        one = self.rank(rank, "--hold", str(batches), "--until", str(self.go_on))
        one.wait_for("holding")
        return one

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def site(tmp_path: Path, durable: bool) -> Iterator[Site]:
    site = Site(tmp_path, durable)
    try:
        yield site
    finally:
        site.close()


def places(one: Process) -> list[list[int]]:
    """Return round, partition and bucket of all batches that a trainer got."""
    return [event["place"] for event in one.events if event["event"] == "batch"]


def finished(*ranks: Process) -> list[list[list[int]]]:
    """Return the batches of trainers, to the end of the feed."""
    for one in ranks:
        assert one.finish() == 0, one.output()
    return [places(one) for one in ranks]


@pytest.mark.parametrize(
    ("durable", "before", "after"),
    [(False, 1, 0), (False, 3, 0), (True, 1, 1), (True, 3, 3), (True, 3, 2)],
)
def test_a_job_that_is_started_again_is_in_step(site: Site, before: int, after: int):
    """1. One rank is ahead of the other.
    2. Both are killed, and where it says so the server is started again, with so many owners.
    3. What one had committed and the other had not is dealt anew, and nothing twice.
    """
    site.serve(before)
    with site.held(0, _AHEAD) as one, site.held(1, _BEHIND) as two:
        one.kill(), two.kill()
        done = [*one.rows()[:-1], *two.rows()[:-1]]
    if after:
        site.serve(after)
    with site.rank(0) as one, site.rank(1) as two:
        first, second = finished(one, two)
        rows = [i for batch in (*done, *one.rows(), *two.rows()) for i in batch]
    assert first == second and len(first) > 20
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("durable", [False])
def test_a_rank_that_is_started_again_alone_goes_on_after_its_own_commits(site: Site, workers: int):
    site.serve(workers)
    with site.held(0, _AHEAD) as killed, site.held(1, _BEHIND) as two:
        killed.kill()
        with site.rank(0) as one:
            site.go_on.touch()
            first, second = finished(one, two)
        rows = [i for batch in (*killed.rows()[:-1], *one.rows(), *two.rows()) for i in batch]
    assert places(killed)[:-1] + first == second
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("durable", [True])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 3)])
def test_ranks_that_live_stay_in_step_with_another_number_of_owners(
    site: Site, before: int, after: int
):
    """Rounds of a partition are stored with it, for any later owner."""
    site.serve(before)
    with site.held(0, _AHEAD) as one, site.held(1, _BEHIND) as two:
        site.serve(after)
        site.go_on.touch()
        first, second = finished(one, two)
        rows = [i for batch in (*one.rows(), *two.rows()) for i in batch]
    assert first == second
    assert len(rows) == len(set(rows))
