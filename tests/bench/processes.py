"""Processes of the benchmark: helpers that end with their parent, and what a whole tree costs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

__all__ = ["Usage", "helper", "last_line", "usage"]


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process and all its descendants have used so far."""

    cpu_s: float
    peak_rss_mb: float  # the peaks of all processes, summed: shared pages count in each
    pss_mb: float  # now, every shared page counted once


def usage() -> Usage:
    """Return the usage of this process and its descendants."""
    me = psutil.Process()
    cpu_s = peak = pss = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            peak += _kilobytes(f"/proc/{process.pid}/status", "VmHWM:")
            pss += _kilobytes(f"/proc/{process.pid}/smaps_rollup", "Pss:")
    return Usage(cpu_s, peak / 1024, pss / 1024)


def _kilobytes(path: str, field: str) -> float:
    with open(path) as lines:
        return next((float(line.split()[1]) for line in lines if line.startswith(field)), 0.0)


@contextlib.contextmanager
def helper(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``python -m tests.bench.<arguments>``, ended by closing its stdin."""
    command = [sys.executable, "-m", f"tests.bench.{arguments[0]}", *arguments[1:]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def last_line(process: subprocess.Popen[str]) -> str:
    """The next line that a helper says; its end is an error."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended without a word")
    return line.strip()
