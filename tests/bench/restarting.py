"""Restarts of a whole server: ``python -m tests.bench.restarting NAME DIRECTORY``.

    a trainer saves and asks ─► kill -9 of all processes ─► headrace serve ─► its next batch

What is timed begins with the kill and ends with the first batch of the next server in the hands of
the trainer that was there before, so the trainer's way back is part of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from . import states
from .pairs import Judged

__all__ = ["KINDS", "judged", "served", "shown"]

_TIMEOUT_S = 100.0
#: Steps between two restarts: another server's first batches are not its usual ones.
_STEPS = 20
#: Batches that a trainer holds at once, so that as many examples have begun; it may hold 64.
_HELD = 62
#: More keys than are on their way: the file begins anew only after they have ended.
_KEYS, _KEY_STATE, _KEYS_BATCH, _KEY_STEPS = 1_200_000, 512, 16_384, 24
#: Room for the batches held.
_SLAB_BYTES = 3 << 30
_SERVED, _FRAMEWORK = "tests.bench.restarting:served", "tf"
_KIND = "HEADRACE_BENCH_RESTART"


def _few(directory: Path) -> Any:
    """W4 with some thousand examples on their way."""
    return states.pipeline(directory, False, capacity=(_HELD + 2) * states.BATCH)


def _million(directory: Path) -> Any:
    """1,000,000 examples on their way, each with a state of 2 kB."""
    import headrace_server as hs

    return (
        hs.read_npz(_many_file(directory))
        .repeat()
        .batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=[],
            initial_states={"s": hs.zeros((_KEY_STATE,), "float32")},
            num_unroll=1,
            batch_size=_KEYS_BATCH,
            capacity=(_HELD + 2) * _KEYS_BATCH,
        )
    )


#: By name: the pipeline, and seconds at most at the median.
KINDS = {
    "headrace restart": (_few, 1.0),
    "headrace restart, 1,000,000 keys": (_million, 5.0),
}


def served() -> Any:
    """What the daemon serves; its environment says what that is."""
    name, directory = os.environ[_KIND].split("\n")
    return KINDS[name][0](Path(directory))


def _many_file(directory: Path) -> str:
    return str(directory / "keys.npz")


def _prepare(directory: Path) -> None:
    """Make the file of the many keys unless it is there."""
    path = Path(_many_file(directory))
    if not path.exists():
        keys = np.array([b"k%07d" % i for i in range(_KEYS)])
        part = path.with_suffix(".part.npz")
        np.savez(part, key=keys, x=np.zeros((_KEYS, _KEY_STEPS, 1), np.float32))
        part.rename(path)


def judged(title: str, name: str, measured: Mapping[str, Any]) -> list[Judged]:
    limit = KINDS[name][1]
    took = measured["p50_s"]
    return [Judged(title, "p50", f"≤ {limit:g} s", f"{took:.2f} s", took <= limit)]


def shown(measured: Mapping[str, Any]) -> str:
    return (
        f"kill -9 to the first batch: p50 {measured['p50_s']:.2f} s, at most "
        f"{max(measured['took_s']):.2f} s, of {len(measured['took_s'])}"
    )


class _Daemon:
    """``headrace serve``, started again at the same address."""

    def __init__(self, name: str, directory: Path, state: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self._command = [
            *(sys.executable, "-m", "headrace_server.cli", "serve", _SERVED),
            *("--bind", self.address, "--state-dir", str(state)),
            *("--slab-bytes", str(_SLAB_BYTES)),
        ]
        self._environment = {**os.environ, _KIND: f"{name}\n{directory}"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, env=self._environment
        )

    def kill(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
        self._process.wait()
        self._process = None


@contextlib.contextmanager
def _daemon(name: str, directory: Path) -> Iterator[_Daemon]:
    with tempfile.TemporaryDirectory(prefix="state-", dir=directory) as state:
        daemon = _Daemon(name, directory, Path(state))
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.kill()


def _fill(daemon: _Daemon) -> None:
    """Have many examples begin."""
    with _connected(daemon, _HELD) as feed:
        held = [next(feed) for _ in range(_HELD)]
        for batch in held:
            _save(feed, batch)


def _connected(daemon: _Daemon, prefetch: int) -> Any:
    import headrace

    return headrace.connect(
        daemon.address, framework=_FRAMEWORK, prefetch=prefetch, timeout=_TIMEOUT_S
    )


def _save(feed: Any, batch: Any) -> None:
    for name in feed.states:
        batch.save_state(name, batch.state(name) + 1)


def _step(feed: Any) -> None:
    _save(feed, next(feed))


def _measured(daemon: _Daemon, feed: Any, seconds: float) -> dict[str, Any]:
    took: list[float] = []
    until = perf_counter() + seconds
    while not took or perf_counter() < until:
        for _ in range(_STEPS):
            _step(feed)
        daemon.kill()
        began = perf_counter()
        daemon.start()
        _step(feed)
        took.append(perf_counter() - began)
    return {"took_s": took, "p50_s": sorted(took)[len(took) // 2]}


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    _prepare(directory)
    with _daemon(name, directory) as daemon:
        _fill(daemon)
        print(json.dumps({"warm": True}), flush=True)
        for line in sys.stdin:
            with _connected(daemon, 0) as feed:
                measured = _measured(daemon, feed, json.loads(line)["seconds"])
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
