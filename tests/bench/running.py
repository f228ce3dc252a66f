"""Contestants that run: each in a process of its own, kept for as long as a comparison needs it.

    contestants(ours, peer) ─► begun and warmed side by side ─► window, window … ─► keep(names)

Between its windows one is stopped with all its children: what it would make ahead meanwhile would
take the machine from another, and count for itself.
One that says nothing for too long is ended with all its children, and so is what one leaves behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from .environments import Absent, Environments

__all__ = ["Failed", "Process", "Running"]

_WARM_S = 240.0
_WINDOW_S = 120.0  # beyond its own length
_CLOSE_S = 30.0
#: A contestant that failed so often is not begun again.
_ATTEMPTS = 3
_SAID = 4000


class Failed(Exception):
    """A contestant ended, was silent or can not run; the text has its output."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class Process:
    """``python -m tests.bench.window NAME DIRECTORY``, asked and answering in lines of JSON."""

    def __init__(
        self, python: str, name: str, directory: Path, packages: Sequence[Path] = ()
    ) -> None:
        """``packages`` are directories that precede installed packages on the path."""
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        if packages:
            environment["PYTHONPATH"] = os.pathsep.join(map(str, packages))
        self._name = name
        # TensorFlow talks a lot: shown if it matters.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", "tests.bench.window", name, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def warm(self) -> None:
        """Wait until it has warmed up; then it is stopped."""
        self._answer(_WARM_S)
        self._signal(signal.SIGSTOP)

    def window(self, seconds: float) -> Any:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # it ended: there is no answer then
            self._process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
            self._process.stdin.flush()
        answer = self._answer(seconds + _WINDOW_S)
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self, within: float) -> Any:
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._signal(signal.SIGKILL)

        timer = threading.Timer(within, end)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    with contextlib.suppress(json.JSONDecodeError):  # a library printed it
                        return json.loads(line)
        finally:
            timer.cancel()
            timer.join()
        if late.is_set():
            raise Failed(self._name, f"said nothing for {within:g} s")
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace")[-_SAID:]
        raise Failed(self._name, f"ended with {self._process.wait()}: {said}")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._complaints.close()


class Running:
    """The contestants that run now."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environments = Environments(directory)
        self._processes: dict[str, Process] = {}
        self._failures: dict[str, list[str]] = {}

    def contestants(self, *names: str) -> list[Process]:
        """These, warm."""
        begun = [name for name in names if name not in self._processes]
        for name in begun:
            self._processes[name] = self._begun(name)
        for name in begun:
            self._processes[name].warm()
        return [self._processes[name] for name in names]

    def _begun(self, name: str) -> Process:
        failures = self._failures.get(name, [])
        if len(failures) >= _ATTEMPTS:
            raise Failed(name, failures[-1])
        try:
            python = self._environments.python(name)
            packages = self._environments.packages(name)
        except Absent as error:
            raise Failed(name, str(error)) from None
        return Process(python, name, self._directory, packages)

    def failed(self, error: Failed) -> None:
        """Remember it; nothing that ran beside it is trusted either."""
        self._failures.setdefault(error.name, []).append(error.why)
        self.keep(())

    def keep(self, names: Collection[str]) -> None:
        """End all others."""
        for name in [name for name in self._processes if name not in names]:
            self._processes.pop(name).close()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Running]:
    """None runs when it is left."""
    them = Running(directory)
    try:
        yield them
    finally:
        them.keep(())
