"""Memory of batches: the server reuses it once all readers have released it, and not before."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually

from . import user_functions
from .processes import Process
from .serving import connect, serving

_MIB = 1 << 20
_HOLDER = """
import json, sys, time
import headrace
feed = headrace.connect(sys.argv[1], timeout=60)
kept = []
for batch in feed:
    kept.append(batch["x"])
    if len(kept) == int(sys.argv[2]):
        print(json.dumps({"event": "holds", "number": batch.number}), flush=True)
        time.sleep(600)
"""
#: A hostile trainer: it commits its batches, and never releases their memory.
_KEEPER = """
import json, sys, time
import headrace
from headrace.session import MappedBatches
MappedBatches.release = lambda self, token: None
feed = headrace.connect(sys.argv[1], prefetch=2, timeout=60)
for n, batch in enumerate(feed, 1):
    assert (batch["x"] == (batch["i"] % 251).astype("uint8")[:, None]).all()
    if n == int(sys.argv[2]):
        feed.commit()
        print(json.dumps({"event": "keeps", "batches": n}), flush=True)
        time.sleep(600)
"""


def blocks(n: int, nbytes: int = 64 * 1024, batch_size: int = 16) -> hs.Pipeline:
    """Return a feed of batches of one MiB, whose rows all differ."""
    return hs.from_function(user_functions.numbered, n, nbytes).batch(batch_size)


def is_right(batch: Any) -> bool:
    """Return whether a batch has the bytes with which it was made."""
    x, i = np.asarray(batch["x"]), np.asarray(batch["i"])
    return bool((x == (i % 251).astype(np.uint8)[:, None]).all())


@pytest.mark.parametrize("framework", ["numpy", "tf"])
def test_all_batches_can_be_kept_though_they_do_not_fit_the_slab(
    framework: str, way: str, request: pytest.FixtureRequest
) -> None:
    if framework == "tf":
        request.getfixturevalue("tf")
    with (
        serving(blocks(40 * 16), slab_bytes=8 * _MIB) as server,
        headrace.connect(server.address, framework=framework, timeout=PATIENCE_S) as feed,
    ):
        kept = [dict(batch) for batch in feed]
        assert all(is_right(batch) for batch in kept)
    assert len(kept) == 40
    assert all(is_right(batch) for batch in kept)


def test_batches_of_half_the_slab_can_be_kept_too() -> None:
    pipeline = blocks(12 * 4, _MIB, 4)
    with (
        serving(pipeline, slab_bytes=8 * _MIB) as server,
        connect(server) as feed,
    ):
        kept = [dict(batch) for batch in feed]
    assert len(kept) == 12 and all(is_right(batch) for batch in kept)


def test_two_trainers_that_keep_all_do_not_stop_each_other() -> None:
    with hs.run(blocks(40 * 16), workers=2, partitions=2, slab_bytes=8 * _MIB) as server:
        kept = []
        with (
            connect(server) as one,
            connect(server) as two,
        ):
            for _ in range(10):
                kept += [dict(next(one)), dict(next(two))]
            two.close()
            kept += [dict(batch) for batch in one]
    rows = np.concatenate([batch["i"] for batch in kept])
    assert sorted(rows.tolist()) == list(range(40 * 16))
    assert all(is_right(batch) for batch in kept)


def test_what_a_trainer_writes_into_a_batch_stays_its_own() -> None:
    """The same memory is used again and again: a later batch and another trainer see none of it."""
    pipeline = hs.from_function(user_functions.numbered, 64, 16 * 1024).repeat(40).batch(16)
    with serving(pipeline, slab_bytes=4 * _MIB) as server:
        seen = {0: 0, 1: 0}
        with (
            connect(server) as one,
            connect(server) as two,
        ):
            for step in range(120):
                which = step % 2
                batch = next((one, two)[which])
                assert is_right(batch), f"step {step}"
                if which == 0:
                    batch["x"][:] = 255
                    batch["i"][:] = -1
                seen[which] += 1
        assert seen == {0: 60, 1: 60}


def test_a_trainer_gets_a_batch_though_another_of_its_thread_holds_all_memory() -> None:
    pipeline = hs.from_function(user_functions.numbered, 64, 16 * 1024).repeat(20).batch(16)
    with serving(pipeline, slab_bytes=_MIB) as server, connect(server, prefetch=16) as one:
        next(one)
        eventually(lambda: server.stats()["default"]["standing"]["leased"] == 3)  # all memory
        with connect(server) as two:
            assert is_right(next(two))
        assert sum(map(is_right, one)) == 78  # its own is committed as it ends


def test_a_batch_that_was_written_into_and_given_back_goes_out_as_it_was_made(way: str) -> None:
    with serving(blocks(32)) as server:
        with (
            contextlib.suppress(KeyboardInterrupt),
            headrace.connect(server.address, prefetch=0, timeout=PATIENCE_S) as feed,
        ):
            batch = next(feed)
            first = batch.number
            batch["x"][:] = 255
            raise KeyboardInterrupt
        with connect(server) as feed:
            again = list(feed)
    assert again[0].number == first == 0
    assert all(is_right(batch) for batch in again) and len(again) == 2


def test_views_outlive_the_feed_the_server_and_its_files(tmp_path: Path) -> None:
    with hs.run(blocks(64), shm_dir=str(tmp_path)) as server:
        feed = connect(server)
        batches = [next(feed) for _ in range(3)]
        views = [batch["x"][2:5, ::7] for batch in batches]
        numbers = [batch["i"][2:5] for batch in batches]
        del batches
        feed.close()
        assert list(tmp_path.glob("headrace-*/slab-*"))
    assert not list(tmp_path.iterdir())
    for x, i in zip(views, numbers, strict=True):
        assert (x == (i % 251).astype(np.uint8)[:, None]).all()
        x += 1


@pytest.mark.parametrize("keepers", [1, 3])
def test_trainers_that_keep_all_memory_they_can_stop_nobody(keepers: int) -> None:
    """1. Trainers of this host commit four times what the slab holds, and release none of it.
    2. Another one gets all the rest: memory that they may not have is left for it.
    """
    pipeline = blocks(400 * 4, _MIB // 16, 4)  # 32 batches fit
    with serving(pipeline, slab_bytes=8 * _MIB, max_credits=4) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(keepers):
                keeper = stack.enter_context(
                    Process("-c", _KEEPER, server.address, str(128 // keepers))
                )
                keeper.wait_for("keeps")
            with connect(server) as feed:
                got = 0
                for batch in feed:
                    assert is_right(batch)
                    got += 1
                    if got == 250:
                        break
        assert got == 250


def test_a_killed_trainer_gives_back_its_batches_and_the_memory_it_had_mapped() -> None:
    """1. A trainer keeps views of as much of the slab as it is allowed to, and is killed.
    2. Another gets every row that was not committed.
    3. All of the slab is there again: its batches of half the slab come through.
    """
    with serving(blocks(12 * 4, _MIB, 4), slab_bytes=8 * _MIB) as server:
        with Process("-c", _HOLDER, server.address, "2") as holder:
            holder.wait_for("holds")
            holder.signal(signal.SIGKILL)
            holder.finish()
        with connect(server) as feed:
            got = []
            for batch in feed:
                assert is_right(batch)
                got.append(batch.number)
    # The request for batch 1 committed batch 0, if its message was sent.
    assert sorted(got) in (list(range(12)), list(range(1, 12)))


def test_a_loop_goes_on_where_a_second_batch_would_not_fit_beside_the_first() -> None:
    """Less than half of the slab is in use, but what is free lies in two segments.  A loop keeps
    its batch until it has the next one, so it must be a copy.
    """
    with serving(blocks(3 * 9, _MIB, 9), slab_bytes=24 * _MIB) as server, connect(server) as feed:
        assert [is_right(batch) for batch in feed] == [True] * 3


def resources(pids: list[int]) -> tuple[list[float], list[int]]:
    """Return resident MiB, without shared memory, and the open files of processes."""
    processes = [psutil.Process(pid) for pid in pids]
    private = [(p.memory_info().rss - p.memory_info().shared) / _MIB for p in processes]
    return private, [p.num_fds() for p in processes]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("path", ["shared memory", "tcp"])
def test_nothing_grows_over_many_epochs_and_many_trainers(
    path: str, request: pytest.FixtureRequest
) -> None:
    if path == "tcp":
        request.getfixturevalue("over_tcp")
    pipeline = hs.from_function(user_functions.numbered, 256, 4096).repeat().batch(16)
    with hs.run(pipeline, workers=2, partitions=1) as server:
        pids = [os.getpid(), *server.pids.values()]

        def work(seconds: float) -> int:
            steps = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with connect(server) as feed:
                    for _, batch in zip(range(200), feed, strict=False):
                        batch["x"][0, 0] += 1
                        steps += 1
            return steps

        work(1.5)
        before = resources(pids)
        assert work(3.5) > 500
        after = resources(pids)
    grown = [b - a for a, b in zip(before[0], after[0], strict=True)]
    assert max(grown) < 8, f"MiB grown of client, locator, worker: {grown}"
    assert max(b - a for a, b in zip(before[1], after[1], strict=True)) <= 2


def _examples_mapped_by(process: psutil.Process) -> int:
    return Path(f"/proc/{process.pid}/maps").read_text().count("headrace-examples")


def test_processes_of_a_server_share_one_copy_of_examples_in_memory() -> None:
    """Only workers map it, and it is private in no process, that of the user included."""
    nbytes = 128 * _MIB
    pipeline = hs.from_examples([{"x": np.zeros(_MIB, np.uint8)}] * 128).batch(8)
    user = psutil.Process()
    before = user.memory_full_info().uss
    mine = _examples_mapped_by(user)
    with serving(pipeline, workers=2) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            assert sum(batch["x"].shape[0] for batch in feed) == 128
        processes = {"supervisor": user} | {n: psutil.Process(p) for n, p in server.pids.items()}
        mapped = {n: _examples_mapped_by(p) for n, p in processes.items()}
        private = {n: p.memory_full_info().uss for n, p in processes.items()}
    assert mapped.pop("supervisor") == mine
    assert sorted(n for n, count in mapped.items() if count) == ["worker-0-0", "worker-1-0"]
    assert private.pop("supervisor") - before < nbytes / 2
    assert private.pop("locator") < nbytes / 2
