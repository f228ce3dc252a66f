"""One interpreter that has imported what is slow to import, and forks for each program it runs.

    with Forks() as forks:
        done = forks.run(["program.py", "--option"], cwd, imports=["tensorflow"])

Each program has a process of its own, in its own directory and session, and sees nothing of the
others.  The interpreter itself only imports: no thread or framework has begun where it forks.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def python_path() -> str:
    """What this process imports from, for one that runs in another directory."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


class Forks:
    """The end that asks."""

    def __init__(self) -> None:
        self._outputs = tempfile.TemporaryDirectory(prefix="headrace-forks-")
        self._interpreter = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET, "PYTHONPATH": python_path()},
        )

    def run(
        self,
        program: Sequence[str | Path],
        cwd: Path,
        imports: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 100,
    ) -> subprocess.CompletedProcess[str]:
        """Run a file (``.py``) or a module with arguments to its end."""
        out, err = Path(self._outputs.name, "out"), Path(self._outputs.name, "err")
        order = {
            "program": [str(word) for word in program],
            "cwd": str(cwd),
            "imports": list(imports),
            "environment": dict(environment or {}),
            "outputs": [str(out), str(err)],
        }
        stdin, stdout = self._interpreter.stdin, self._interpreter.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        pid = int(stdout.readline())
        late = threading.Timer(timeout_s, _kill, (pid,))
        late.start()
        code = int(stdout.readline())
        late.cancel()
        late.join()
        return subprocess.CompletedProcess(program, code, out.read_text(), err.read_text())

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._interpreter.communicate()  # which closes its input, and that is its end
        self._outputs.cleanup()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        for name in order["imports"]:
            importlib.import_module(name)
        pid = os.fork()
        if pid == 0:
            _become(order)
            return
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, object]) -> None:
    """This process is the program from here to its end."""
    os.setsid()
    program, environment, outputs = order["program"], order["environment"], order["outputs"]
    assert isinstance(program, list) and isinstance(environment, dict) and isinstance(outputs, list)
    os.chdir(str(order["cwd"]))
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    sys.argv = program
    if program[0].endswith(".py"):
        runpy.run_path(program[0], run_name="__main__")
    else:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
