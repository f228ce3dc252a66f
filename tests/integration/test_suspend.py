"""Processes that stand still for longer than leases and timeouts: real SIGSTOP, real SIGCONT."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import headrace_server as hs
from tests.patience import eventually

from .processes import trainer

LEASE_S = 2.0


def numbered(n: int) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(n)])


@contextlib.contextmanager
def suspended(pids: Iterable[int], seconds: float) -> Iterator[None]:
    """Stop processes, and let them go on in this order after ``seconds``, or as the block ends."""
    stopped = list(pids)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        until = time.monotonic() + seconds
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def seen(server: hs.Server) -> dict[str, Any]:
    return server.stats()["default"]


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[hs.Server, list[int]]]:
    """A server, and two trainers that hold a batch each: one by shared memory, one by TCP."""
    with (
        hs.run(numbered(100).batch(4), lease_ttl_s=LEASE_S) as server,
        trainer(server.address, "--hold", "1") as near,
        trainer(server.address, "--hold", "1", "--far") as far,
    ):
        near.wait_for("holding")
        far.wait_for("holding")
        assert [t["local"] for t in seen(server)["trainers"]].count(True) == 1
        yield server, [near.pid, far.pid]


@pytest.mark.parametrize("who", ["server", "both"])
def test_no_lease_ends_because_the_server_stood_still(who: str, held: tuple[hs.Server, list[int]]):
    """1 all stand still for longer than a lease, 2 the server wakes first, 3 it hears trainers."""
    server, trainers = held
    before = seen(server)["expired"]
    with suspended([*server.pids.values(), *(trainers if who == "both" else [])], 1.25 * LEASE_S):
        pass
    eventually(lambda: all(t["silent_s"] < LEASE_S / 4 for t in seen(server)["trainers"]))
    now = seen(server)
    assert now["expired"] == before == 0 and len(now["trainers"]) == 2
    assert now["standing"]["leased"] >= 2
