"""Memory of batches: the server reuses it once all readers have released it, and not before."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any

import numpy as np

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

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


def blocks(n: int, nbytes: int = 64 * 1024, batch_size: int = 16) -> hs.Pipeline:
    """Return a feed of batches of one MiB, whose rows all differ."""
    return hs.from_function(user_functions.numbered, n, nbytes).batch(batch_size)


def is_right(batch: Any) -> bool:
    """Return whether a batch has the bytes with which it was made."""
    x, i = np.asarray(batch["x"]), np.asarray(batch["i"])
    return bool((x == (i % 251).astype(np.uint8)[:, None]).all())


def test_all_batches_can_be_kept_though_they_do_not_fit_the_slab(way):
    with (
        serving(blocks(40 * 16), slab_bytes=8 * _MIB) as server,
        headrace.connect(server.address, timeout=PATIENCE_S) as feed,
    ):
        kept = [dict(batch) for batch in feed]
        assert all(is_right(batch) for batch in kept)
    assert len(kept) == 40
    assert all(is_right(batch) for batch in kept)


def test_what_a_trainer_writes_into_a_batch_stays_its_own():
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


def test_trainers_in_step_go_on_though_prefetched_batches_fill_the_slab():
    """One loop takes a batch of each of three trainers, and each asks for more than there is."""
    pipeline = blocks(16 * 200)
    with serving(pipeline, slab_bytes=4 * _MIB, partitions=4) as server, ExitStack() as stack:
        feeds = [stack.enter_context(connect(server, prefetch=8)) for _ in range(3)]
        for _ in range(20):
            assert all(is_right(next(feed)) for feed in feeds)


def test_views_outlive_the_feed_the_server_and_its_files(tmp_path):
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


def test_a_killed_trainer_gives_back_its_batches_and_the_memory_it_had_mapped():
    """1. A trainer keeps views of as much of the slab as it is allowed to, and is killed.
    2. Another gets every row that was not committed.
    3. All of the slab is there again: its batches of half the slab come through.
    """
    with serving(blocks(12 * 4, _MIB, 4), slab_bytes=8 * _MIB, lease_ttl_s=600) as server:
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
