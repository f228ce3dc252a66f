"""Trainers and servers as processes, and the lines that they print."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace_server.process.rundir import sweep
from tests.children import children_of
from tests.nursery import WarmPopen, environment
from tests.patience import PATIENCE_S

HERE = Path(__file__).parent


class Process:
    """A subprocess that prints JSON lines, for which a test can wait."""

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        before: Sequence[str] = (),
        warm: bool = True,
        imports: Sequence[str] = (),
        **more: str,
    ) -> None:
        """``more``: of its environment."""
        self._process = (
            functools.partial(WarmPopen, imports=imports) if warm else subprocess.Popen
        )(
            [*before, sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**more),
            cwd=cwd,
        )
        self.pid = self._process.pid
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def next_line(self, timeout_s: float = PATIENCE_S) -> str | None:
        """Return the next line; None at the end of the output."""
        line = self._queue.get(timeout=timeout_s)
        if line is None:
            self._queue.put(None)  # it stays at its end
        else:
            self.lines.append(line)
        return line

    def wait_for(self, event: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the next event of a kind; those before it are added to ``events``."""
        while True:
            line = self.next_line(timeout_s)
            if line is None:
                raise AssertionError(f"ended before {event!r}: {''.join(self.lines)}")
            if line.startswith("{"):
                told = json.loads(line)
                self.events.append(told)
                if told["event"] == event:
                    return told

    def output(self) -> str:
        """Return its output as far as it was read."""
        return "".join(self.lines)

    def finish(self, timeout_s: float = PATIENCE_S) -> int:
        """Read its output to the end; return the exit code."""
        while (line := self.next_line(timeout_s)) is not None:
            if line.startswith("{"):
                self.events.append(json.loads(line))
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end; return the exit code."""
        return self._process.wait(timeout_s)

    def rows(self) -> list[list[int]]:
        """Return the rows of the batches that it printed."""
        return [event["rows"] for event in self.events if event["event"] == "batch"]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and reap."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def kill_all(self) -> None:
        """kill -9 it and its children, as the loss of a host does."""
        children = children_of(self.pid)
        self.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()
            sweep(Path("/dev/shm"))  # a killed server leaves its shared memory
        self._thread.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def trainer(address: str, *arguments: str) -> Process:
    """A trainer process."""
    return Process(str(HERE / "trainer.py"), address, *arguments)


def serve(
    cwd: Path, *arguments: str, before: Sequence[str] = (), warm: bool = True
) -> tuple[Process, str]:
    """``headrace serve`` as a process, and its address.  ``before``: the head of its command.

    Where a test looks at the processes themselves it is not ``warm``: they are as those of users.
    """
    # -P: the directory is not on the path, as where a script is installed.
    command = [
        "-P",
        "-m",
        "headrace_server.cli",
        "serve",
        "--bind",
        "tcp://127.0.0.1:*",
        *arguments,
    ]
    process = Process(*command, cwd=cwd, before=before, warm=warm)
    while True:
        line = process.next_line(60)
        if line is None:
            raise AssertionError("".join(process.lines))
        if line.startswith("headrace serves at "):
            # a line of the log may follow without an end of the line between
            return process, re.findall(r"(?:tcp|ipc)://[^\s:]+(?::\d+)?", line)[-1]
