"""A whole line at work, to be measured: a server, its trainers, and what all of them have used.

hs.run ─► locator, workers ◄─ trainers (processes of their own) ─► board
              │                   │
              └── schedstat, RSS ─┴──► Sample … Sample ──► Cost of a batch between the two
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace_server as hs
from tests.nursery import environment

from .accounts import cpu_s, memory_mb
from .board import Board

__all__ = ["Cost", "Line", "Sample", "line", "until"]

_POLL_S = 0.002
_PATIENCE_S = 300.0


def until(true: Callable[[], object], what: str, patience_s: float = _PATIENCE_S) -> None:
    """Wait until something is so."""
    end = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Sample:
    """The batches taken and resources used up to a moment."""

    at: float
    batches: int
    rows: int
    cpu: dict[str, float]  # s, by role


@dataclass(frozen=True, slots=True)
class Cost:
    """The difference between two samples."""

    batches: int
    rows: int
    seconds: float
    cpu: dict[str, float]

    @classmethod
    def between(cls, before: Sample, after: Sample) -> Cost:
        cpu = {role: after.cpu[role] - before.cpu[role] for role in after.cpu}
        return cls(
            after.batches - before.batches, after.rows - before.rows, after.at - before.at, cpu
        )

    @property
    def per_batch_us(self) -> float:
        """Processor time of all processes together."""
        return sum(self.cpu.values()) / self.batches * 1e6

    @property
    def per_row_us(self) -> float:
        return sum(self.cpu.values()) / self.rows * 1e6

    def of(self, role: str) -> float:
        """Processor time of one role for a batch, in µs."""
        return self.cpu[role] / self.batches * 1e6

    def by_role(self) -> dict[str, float]:
        """The same of all roles."""
        return {f"{role} µs": self.of(role) for role in self.cpu}


class Line:
    """One server, or several with a share each, and a trainer."""

    def __init__(
        self, servers: list[hs.Server], board: Board, trainer: subprocess.Popen[bytes]
    ) -> None:
        self.servers, self.board, self.trainer = servers, board, trainer

    def pids(self, role: str) -> list[int]:
        """``worker``, ``locator`` or ``trainer``."""
        if role == "trainer":
            return [self.trainer.pid]
        every = [item for server in self.servers for item in server.pids.items()]
        return [pid for name, pid in every if name.startswith(role)]

    def sample(self) -> Sample:
        cpu = {
            role: sum(cpu_s(pid) for pid in self.pids(role))
            for role in ("worker", "locator", "trainer")
        }
        return Sample(time.monotonic(), sum(self.board.batches), self.board.rows, cpu)

    def memory_mb(self, role: str) -> float:
        return sum(memory_mb(pid) for pid in self.pids(role))

    def run(self, batches: int) -> Cost:
        """Take ``batches`` more while all go on; return their cost."""
        before = self.sample()
        self.check_until(lambda: sum(self.board.batches) >= before.batches + batches, "batches")
        return Cost.between(before, self.sample())

    def best(self, batches: int, times: int = 3) -> Cost:
        """Return the cheapest of some runs: other work on the machine only adds to the cost."""
        return min((self.run(batches) for _ in range(times)), key=lambda cost: cost.per_batch_us)

    def check_until(self, true: Callable[[], object], what: str) -> None:
        def so() -> object:
            if self.trainer.poll():
                raise RuntimeError("a trainer has ended by an error")
            return true()

        until(so, what)


@contextlib.contextmanager
def line(
    pipeline: Any,
    *,
    warm: int = 50,
    how: dict[str, Any] | None = None,
    servers: int = 1,
    within: Sequence[Path] = (),
    **options: Any,
) -> Iterator[Line]:
    """A line at work, after so many batches.  ``how`` is for the trainer, the rest for hs.run.

    ``within``: a cgroup for the processes of each server.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-scale-") as scratch:
        board = Board(Path(scratch) / "board", 1)
        with contextlib.ExitStack() as stack:
            running_servers = [
                stack.enter_context(hs.run(pipeline, share=(index, servers), **options))
                for index in range(servers)
            ]
            for server, group in zip(running_servers, within, strict=False):
                for pid in server.pids.values():
                    (group / "cgroup.procs").write_text(str(pid))
            address = ",".join(server.address for server in running_servers)
            arguments = [address, str(Path(scratch) / "board"), "0", json.dumps(how or {})]
            command = [sys.executable, "-m", "tests.scale.trainer", *arguments]
            trainer = subprocess.Popen(command, env=environment())
            try:
                running = Line(running_servers, board, trainer)
                running.check_until(lambda: board.all_here, "the trainer to connect")
                board.start()
                running.check_until(lambda: sum(board.batches) >= warm, "the first batches")
                yield running
            finally:
                board.end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    trainer.wait(5)
                trainer.kill()
                trainer.wait()
