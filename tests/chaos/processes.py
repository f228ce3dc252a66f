"""Processes of a run, and whether any is left of a session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.children import children_of

__all__ = ["Process", "living"]

_ROOT = Path(__file__).parents[2]


class Process:
    """A process that writes to a file, in a session of its own, perhaps on another host."""

    def __init__(
        self,
        module: str,
        arguments: list[str],
        log: Path,
        inside: Sequence[str] = (),
        **environment: str,
    ) -> None:
        path = [str(_ROOT), *(p for p in sys.path if p)]
        environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path)}
        with open(log, "ab") as out:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environment,
                cwd=_ROOT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def code(self) -> int | None:
        return self._process.poll()

    def children(self) -> dict[int, str]:
        """Return its children with their command lines."""
        found = {}
        for pid in children_of(self.pid):
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        return found

    def kill(self, group: bool = True) -> None:
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def living(sessions: set[int]) -> list[int]:
    """Return living processes of these sessions."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, *_, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) in sessions and state != "Z":
                found.append(int(path.parent.name))
    return found
