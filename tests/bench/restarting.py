"""Restarts of a whole server: ``python -m tests.bench.restarting NAME DIRECTORY``.

    a trainer saves and asks ─► kill -9 of all processes ─► headrace serve ─► its next batch

The measured time begins with the kill and ends with the first batch of the next server in the hands
of the trainer that was there before, so the trainer's way back is part of it.
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

import psutil

from headrace_server.process.rundir import sweep

from . import states
from .pairs import Judged

__all__ = ["judged", "served", "shown"]

_TIMEOUT_S = 100.0
_LIMIT_S = 1.0
#: Steps between two restarts: another server's first batches are not its usual ones.
_STEPS = 20
#: Batches that a trainer holds at once, so that as many examples have begun; it may hold 64.
_HELD = 62
_SERVED, _FRAMEWORK = "tests.bench.restarting:served", "tf"
_DIRECTORY = "HEADRACE_BENCH_DIRECTORY"


def _pipeline(directory: Path) -> Any:
    """W4 with some thousand examples on their way."""
    return states.pipeline(directory, False, capacity=(_HELD + 2) * states.BATCH)


def served() -> Any:
    """Return the pipeline of the daemon, by its environment."""
    return _pipeline(Path(os.environ[_DIRECTORY]))


def judged(title: str, name: str, measured: Mapping[str, Any]) -> list[Judged]:
    del name
    took = measured["p50_s"]
    return [Judged(title, "p50", f"≤ {_LIMIT_S:g} s", f"{took:.2f} s", took <= _LIMIT_S)]


def shown(measured: Mapping[str, Any]) -> str:
    return (
        f"kill -9 to the first batch: p50 {measured['p50_s']:.2f} s, at most "
        f"{max(measured['took_s']):.2f} s, of {len(measured['took_s'])}"
    )


class _Daemon:
    """``headrace serve``, started again at the same address."""

    def __init__(self, directory: Path, state: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self._command = [
            *(sys.executable, "-m", "headrace_server.cli", "serve", _SERVED),
            *("--bind", self.address, "--state-dir", str(state)),
        ]
        self._environment = {**os.environ, _DIRECTORY: str(directory)}
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
def _daemon(directory: Path) -> Iterator[_Daemon]:
    with tempfile.TemporaryDirectory(prefix="state-", dir=directory) as state:
        daemon = _Daemon(directory, Path(state))
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.kill()
            sweep(Path("/dev/shm"))  # a killed server leaves its run directory to the next start


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
    directory = Path(sys.argv[2])
    with _daemon(directory) as daemon:
        _fill(daemon)
        print(json.dumps({"warm": True}), flush=True)
        for line in sys.stdin:
            with _connected(daemon, 0) as feed:
                measured = _measured(daemon, feed, json.loads(line)["seconds"])
            print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
