"""One server container, from its start to its end: what it is, who reaches it, what it survives.

The feed is numbers in their order, and every trainer goes on where the one before left: at the end
each number has been seen exactly once, over a kill -9 and a SIGTERM of the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

from headrace_proto import __version__

from .engine import ROOT, Engine, until
from .feeds import ROWS
from .outcome import Outcomes
from .tools import call

__all__ = ["SERVER", "TRAINER", "check_server"]

SERVER, TRAINER = f"headrace-server:{__version__}", f"headrace-trainer:{__version__}"
_NAME, _HOLDER = "headrace-check-server", "headrace-check-holder"
_SHM = "headrace-check-shm:/run/headrace"
_HARD = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
_HARDENED = (*_HARD, "--security-opt", "no-new-privileges")
_HERE = ROOT / "tests" / "containers"


def check_server(engine: Engine, outcomes: Outcomes) -> None:
    checks = _Checks(engine)
    try:
        if not outcomes.ran("server starts, hardened", checks.start):
            return
        outcomes.ran("server image: user, no framework", checks.contents)
        outcomes.ran("healthcheck", checks.health)
        outcomes.ran("trainer outside, over TCP", checks.outside)
        outcomes.ran("trainer in a container, shared memory", checks.inside)
        outcomes.ran("kill -9 of the server", checks.kill)
        outcomes.ran("stop of a trainer with a batch in hand", checks.stop_trainer)
        outcomes.ran("SIGTERM of the server", checks.stop_server)
        outcomes.ran("every row once, over all of this", checks.whole)
    finally:
        engine.remove_all()


class _Checks:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rows: list[int] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self) -> str:
        podman = self.engine.podman
        podman("volume", "create", *_tmpfs("nr_blocks=65536,mode=0700,uid=10001,gid=10001"))
        podman("network", "create", "headrace-check")
        options = ["--memory", "1g", "--pids-limit", "256", "--restart", "on-failure"]
        options += ["--network", "headrace-check", "-p", f"127.0.0.1:{self.port}:5557"]
        options += ["-v", f"{_HERE}/feeds.py:/srv/feeds.py:ro", "-v", _SHM]
        options += ["-v", "headrace-check-state:/state"]
        command = [
            "serve",
            "feeds.py:feeds",
            "--bind=tcp://0.0.0.0:5557",
            "--insecure",
            "--state-dir=/state",
        ]
        command += ["--shm-dir=/run/headrace", "--drain-timeout=20"]
        podman("run", "-d", "--name", _NAME, *_HARDENED, *options, SERVER, *command)
        until(lambda: self.engine.healthy(_NAME), 60, "the server is healthy")
        return "read-only, no capabilities, 1 GiB"

    def contents(self) -> str:
        status = self.engine.podman("exec", _NAME, "cat", "/proc/1/status")
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert set(lines["Uid"].split()) == {"10001"}, lines["Uid"]
        assert int(lines["CapEff"], 16) == 0 and lines["NoNewPrivs"] == "1", lines
        find = "import importlib.util as u; print([m for m in {} if u.find_spec(m)])"
        names = ["tensorflow", "torch", "jax", "pip", "headrace_server", "pyarrow"]
        there = self.engine.podman("exec", _NAME, "python", "-c", find.format(names))
        assert there == "['headrace_server', 'pyarrow']", there
        return "uid 10001, CapEff 0; neither a framework nor pip is in it"

    def health(self) -> str:
        ask = ["exec", _NAME, "python", "-I", "/opt/headrace/healthy.py"]
        said = self.engine.podman(*ask, "tcp://127.0.0.1:5557")
        for page in ("healthz", "readyz"):
            self.engine.podman(*ask, f"http://127.0.0.1:9464/{page}")
        # By the variable that the image sets.
        told = self.engine.podman("exec", _NAME, "headrace", "status")
        assert told.startswith("serving"), told
        closed = call("podman", *ask, "tcp://127.0.0.1:1", env=self.engine.env, code=1)
        assert "refused" in closed.stdout, closed.stdout
        return said.partition(": ")[2] + ", is well and ready; a closed port is told"

    def outside(self) -> str:
        told = self._outside(100)
        assert told["local"] is False
        return f"rows {self._take(told)}"

    def inside(self) -> str:
        told = json.loads(self._container("--rm", TRAINER, "/srv/trainer.py", "100"))
        assert told["local"] is True, "the batches came over TCP"
        return f"rows {self._take(told)}"

    def kill(self) -> str:
        os.kill(self.engine.pid(_NAME), signal.SIGKILL)
        count = ".RestartCount"
        until(lambda: self.engine.state(_NAME, count) == "1", 30, "it was started again")
        until(lambda: self.engine.healthy(_NAME), 60, "it is healthy again")
        return f"started again by its policy, goes on with rows {self._take(self._outside(100))}"

    def stop_trainer(self) -> str:
        """Check that the batches of a stopped trainer go out again: the next one begins with the
        same row.
        """
        self._container("-d", "--name", _HOLDER, TRAINER, "/srv/trainer.py", "hold")
        until(lambda: self.engine.podman("logs", _HOLDER), 30, "it holds a batch")
        started = time.monotonic()
        self.engine.podman("stop", "--time", "20", _HOLDER)
        took = time.monotonic() - started
        assert took < 10, f"it took {took:.1f} s: the signal was not heard"
        assert "KeyboardInterrupt" in call("podman", "logs", _HOLDER, env=self.engine.env).stderr
        held = json.loads(self.engine.podman("logs", _HOLDER).splitlines()[0])["rows"]
        told = self._outside(100)
        assert held[0] == told["rows"][0], (held, told["rows"][:10])
        return f"gone in {took:.1f} s, what it held went out again: rows {self._take(told)}"

    def stop_server(self) -> str:
        """It waits for the commit of a batch that is out, and ends with 0."""
        script = str(_HERE / "trainer.py")
        with subprocess.Popen(
            [sys.executable, script, self._address, "step"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as trainer:
            assert trainer.stdin is not None and trainer.stdout is not None
            told = json.loads(trainer.stdout.readline())
            with self.engine.background("stop", "--time", "30", _NAME) as stopping:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    stopping.wait(2)
                    raise AssertionError("it did not wait for the batch that is out")
                trainer.stdin.close()  # its step is over
                assert trainer.wait(20) == 0
                stopping.wait(40)
        code = self.engine.state(_NAME, ".State.ExitCode")
        assert code == "0", f"it ended with {code}"
        drained = self._take(told)
        self.engine.podman("start", _NAME)
        until(lambda: self.engine.healthy(_NAME), 60, "it is healthy again")
        after = self._take(self._outside(100))
        return f"waited for rows {drained}, exit code 0; started, goes on with rows {after}"

    def whole(self) -> str:
        self._take(self._outside(0))
        assert self.rows == list(range(ROWS))
        return f"{ROWS} rows"

    @property
    def _address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def _outside(self, rows: int) -> dict[str, object]:
        script = str(_HERE / "trainer.py")
        done = call(sys.executable, script, self._address, str(rows), timeout_s=90)
        return dict(json.loads(done.stdout))

    def _container(self, *words: str) -> str:
        """A trainer with the server's shared memory: options, image, script, argument."""
        *options, image, script, argument = words
        mounts = ["-v", f"{_HERE}/trainer.py:/srv/trainer.py:ro", "-v", _SHM]
        run = ["run", *options, *_HARDENED, *mounts, "--network", "headrace-check"]
        return self.engine.podman(*run, image, script, f"tcp://{_NAME}:5557", argument)

    def _take(self, told: dict[str, object]) -> str:
        rows = told["rows"]
        assert isinstance(rows, list)
        self.rows += rows
        return f"{rows[0]} to {rows[-1]}"


def _tmpfs(options: str) -> list[str]:
    words = ["--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", f"o={options}"]
    return [*words, _SHM.partition(":")[0]]
