"""Open sequences of a log that get no steps, mostly: what they cost while others are trained.

keys rest, each with a step ──► memory of the worker for each; the log's files
one sequence after another  ──► trained meanwhile, so that files come and go
the worker is killed        ──► time until a sequence that comes then is trained
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import headrace
import headrace_server as hs
from tests.integration.serving import pid_of
from tests.patience import eventually
from tests.trials.frame import Report, Setup

from .accounts import MB, memory_mb
from .curve import Curve

__all__ = ["resting"]

_UNROLL, _WIDTH = 80, 24
#: Bytes of a file of a log on a disk.
_FILE_BYTES = 64 << 20
#: Keys that are there before memory is looked at first, and openings at once: each one waits for
#: its place.
_FEW, _AT_ONCE = 200, 64
_TIMEOUT_S = 600.0


def _feed(keys: int) -> hs.Pipeline:
    features = {"x": hs.sequence("float32", (_WIDTH,)), "id": hs.scalar("int64")}
    return hs.live("resting", features, max_open=2 * keys).batch_sequences_with_states(
        None, ["x"], ["id"], None, {"h": hs.zeros((256,))}, _UNROLL, 1, left=40
    )


def resting(setup: Setup, report: Report) -> None:
    keys, curve = setup.sized(100_000, 2 * _FEW), Curve("keys", report)
    trained, over = 0, threading.Event()

    def train() -> None:
        nonlocal trained
        with headrace.connect(server.address, timeout=_TIMEOUT_S) as feed:
            for batch in feed:
                batch.save_state("h", batch.state("h"))
                trained += 1
                if over.is_set():  # the others need not be trained
                    break

    def rest(number: int) -> None:
        one = out.open(f"actor-17/ep-{number}", {"id": number})
        one.append({"x": np.zeros(_WIDTH, np.float32)})

    def busy(segments: int) -> None:
        """Push a sequence; return when it is trained."""
        upto = trained + segments
        one = out.open("busy", {"id": -1})
        one.extend({"x": np.zeros((segments * _UNROLL, _WIDTH), np.float32)})
        one.end()
        out.flush()
        eventually(lambda: trained >= upto)

    with (
        hs.run(_feed(keys), state_dir=setup.scratch) as server,
        headrace.produce(server.address, log="resting", name="actor", timeout=_TIMEOUT_S) as out,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        trainer = threading.Thread(target=train)
        trainer.start()
        list(pool.map(rest, range(_FEW)))
        busy(8)
        worker = pid_of(server, "worker-0-0")
        before = memory_mb(worker)
        list(pool.map(rest, range(_FEW, keys)))
        busy(8)
        lives = server.stats()["default"]["log"]["bytes"]
        each = (memory_mb(worker) - before) * MB / (keys - _FEW)
        for _ in range(setup.of(30, 3)):
            busy(1000)
        files = server.stats()["default"]["log"]["bytes"]
        os.kill(worker, signal.SIGKILL)
        began = time.monotonic()
        over.set()
        busy(1)
        took_s = time.monotonic() - began
        figures = {"bytes of memory each": each, "MB of files": files / MB, "restart s": took_s}
        curve.add(keys, figures)
        trainer.join()
    most = 2 * lives + 2 * _FILE_BYTES
    report.at_most("bytes of the worker's memory for a key that rests", each, 500)
    report.at_most("bytes of the log's files beside the most they may be", files / most, 1.0)
    report.at_most("seconds from a worker's death to the next batch", took_s, 2.0)
    print(curve)
