"""A daemon and trainers with a ledger, to be harmed by hand; at the end the judge of chaos speaks.

Yard: headrace serve (state directory, fixed port, memory of its own)  ◄── trainers of tests.chaos
      start() … kill() … start()                                           ledger ──► verdict()
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.chaos.feeds import PARTITIONS, cells_wanted, pipeline
from tests.chaos.judge import Case, Harm, judge
from tests.chaos.ledger import Line, read_lines
from tests.chaos.stores import tokens_of
from tests.chaos.trainer import FAR, STEP_S
from tests.ports import free_port

from .frame import Report

__all__ = ["ROOT", "Yard", "environment", "served", "until"]

ROOT = Path(__file__).parents[2]
_LEASE_S = 5.0
_PATIENCE_S = 60.0
_POLL_S = 0.01


def served() -> object:
    """Return the pipeline of a yard's daemon, by its environment."""
    mode, size = os.environ["HEADRACE_TRIAL"].split()
    return pipeline(mode, int(size))


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that finds these packages."""
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
    return {**os.environ, "PYTHONPATH": path, **more}


def until(true: Callable[[], object], what: str, patience_s: float = _PATIENCE_S) -> float:
    """Wait until something is so; how long that took."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > patience_s:
            raise RuntimeError(f"waited {patience_s:g} s in vain for {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - began


class Yard:
    """One feed, its daemon and its trainers."""

    def __init__(
        self,
        scratch: Path,
        mode: str,
        size: int,
        trainers: int,
        state: Path | None = None,
        lease_s: float = _LEASE_S,
        far: bool = False,
        files: int = 0,
    ) -> None:
        self.lease_s = lease_s
        self._far = far  # whether trainers are as on another host
        self._files = files  # the daemon's limit of open files, where it is to have another
        self.mode, self.size = mode, size
        self.scratch = scratch
        self.state = state or scratch / "state"
        self.shm = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="trial-"))
        self.ledger, self._calm = scratch / "ledger", scratch / "calm"
        self.ledger.touch()
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.server: subprocess.Popen[bytes] | None = None
        self._trainers: list[subprocess.Popen[bytes] | None] = [None] * trainers
        self._lives = [0] * trainers
        self._ended = [False] * trainers
        self._harms: list[Harm] = []
        self._log = open(scratch / "server.log", "ab")  # noqa: SIM115
        self.starts = 0

    # The daemon

    def start(self, within: str = "", *options: str) -> None:
        """Start the daemon, in a group of its own; ``within`` is a cgroup's directory."""
        self.starts += 1
        self._harm()
        told = self._log_size()
        arguments = ["serve", "tests.trials.yard:served", "--bind", self.address]
        arguments += ["--state-dir", str(self.state), "--shm-dir", str(self.shm)]
        arguments += ["--workers", "2", "--partitions", str(PARTITIONS)]
        arguments += ["--lease-ttl", str(self.lease_s), "--slab-bytes", "8000000", *options]
        command = [sys.executable, "-m", "headrace_server.cli", *arguments]
        if self._files:
            command = ["sh", "-c", f'ulimit -n {self._files}; exec "$0" "$@"', *command]
        if within:
            command = ["sh", "-c", f'echo $$ > {within}/cgroup.procs; exec "$0" "$@"', *command]
        self.server = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment(HEADRACE_TRIAL=f"{self.mode} {self.size}"),
            start_new_session=True,
        )
        until(lambda: self._serves(told), f"the daemon to serve; see {self._log.name}")

    def _log_size(self) -> int:
        return (self.scratch / "server.log").stat().st_size

    def _serves(self, since: int) -> bool:
        assert self.server is not None
        with open(self.scratch / "server.log", "rb") as log:
            log.seek(since)
            text = log.read()
        if self.server.poll() is not None:
            raise RuntimeError(f"the daemon ended: {text.decode(errors='replace')[-800:]}")
        return b"headrace serves at " in text

    def children(self) -> list[psutil.Process]:
        assert self.server is not None
        return psutil.Process(self.server.pid).children(recursive=True)

    def child(self, role: str) -> psutil.Process:
        """The first child of a kind: "locator" or "worker"."""
        for child in self.children():
            module = child.cmdline()[-1]
            if module.startswith("headrace_server.") and module.endswith(f".{role}"):
                return child
        raise RuntimeError(f"the daemon has no {role}")

    def kill(self, group: bool = True) -> None:
        """``kill -9``, of all processes or the first only."""
        assert self.server is not None
        self._harm()
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.server.pid, signal.SIGKILL)
            else:
                self.server.kill()
        self.server.wait()

    def terminate(self, patience_s: float) -> int | None:
        """SIGTERM; the exit code, or None when it did not end."""
        assert self.server is not None
        self._harm()
        self.server.terminate()
        try:
            return self.server.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def _harm(self) -> None:
        now = time.monotonic()
        self._harms.append(Harm(now, now + 5.0))

    def harmed(self, since: float, to: str = "") -> None:
        """Something else was done until now, to the server's side or to a trainer's slot."""
        self._harms.append(Harm(since, time.monotonic() + 2.0, to))

    def signal(self, number: int, server: bool = True, trainers: bool = True) -> None:
        """Send a signal to all processes of the server, to all trainers, or to both."""
        if server and self.server is not None:
            os.killpg(self.server.pid, number)
        for process in self._trainers if trainers else ():
            if process is not None and process.poll() is None:
                process.send_signal(number)

    # Trainers

    def tend(self) -> None:
        """Start trainers that are not there."""
        for slot, process in enumerate(self._trainers):
            if process is not None and process.poll() is not None:
                self._ended[slot] = process.returncode == 0
                self._trainers[slot] = None
            if self._trainers[slot] is None and not self._ended[slot]:
                self._trainers[slot] = self._trainer(slot)

    def _trainer(self, slot: int) -> subprocess.Popen[bytes]:
        self._lives[slot] += 1
        arguments = [self.address, self.mode, str(self.ledger), f"t{slot}.{self._lives[slot]}"]
        arguments += [
            str(slot),
            str(self._calm),
            str(self.lease_s),
            str(2 * _PATIENCE_S),
            str(STEP_S),
        ]
        with open(self.scratch / f"trainer-{slot}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.trainer", *arguments],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment(**({FAR: "1"} if self._far else {})),
            )

    @property
    def restarts(self) -> int:
        """How often a trainer was started again because it had ended by an error."""
        return sum(max(0, lives - 1) for lives in self._lives)

    def said(self, what: str, since: float = 0.0) -> list[Line]:
        """Lines of the ledger of a kind, after a moment."""
        lines = _lines_so_far(self.ledger)
        return [line for line in lines if line.what == what and line.at > since]

    def work(self, acks: int = 1) -> float:
        """Wait until ``acks`` more are acknowledged; return how long that took."""
        since = time.monotonic()

        def worked() -> bool:
            self.tend()
            return self.over or len(self.said("ok", since)) >= acks

        return until(worked, "acknowledgements")

    @property
    def over(self) -> bool:
        return all(self._ended)

    # The end

    def verdict(self, report: Report, stopped: bool = False) -> None:
        """Let all run to the end, and judge.  ``stopped``: trainers may get the error of a stop."""
        self._calm.touch()

        def ended() -> bool:
            self.tend()
            return self.over

        try:
            until(ended, "the end of the feed", 4 * _PATIENCE_S)
        except RuntimeError as error:
            report.wrong(str(error))
        self.terminate(30.0)
        stores = sorted(self.state.glob("feeds/*/*.journal"))
        tokens = [token for store in stores for token in tokens_of(store)]
        wanted = cells_wanted(self.mode, self.size)
        lines = read_lines(self.ledger)
        told = judge(Case(self.mode, wanted, lines, tokens, self._harms, self.lease_s))
        errors = {line.more[:2] for line in lines if line.what == "error"}
        expected = stopped and errors <= {("ConnectionLost", "the server was stopped")}
        for finding in told.findings:
            if expected and finding.law == "a trainer ends well":
                report.count(
                    "trainers told that the server stops",
                    sum(line.what == "error" for line in lines),
                )
                continue
            report.wrong(f"{finding.law}: {finding.text}")
        report.count("acknowledged", len({line.token for line in lines if line.what == "ok"}))

    def close(self) -> None:
        if self.server is not None and self.server.poll() is None:
            self.kill()
        self.signal(signal.SIGCONT, server=False)
        for process in self._trainers:
            if process is not None:
                process.kill()
                process.wait()
        self._log.close()
        with contextlib.suppress(OSError):
            for left in sorted(self.shm.rglob("*"), reverse=True):
                left.rmdir() if left.is_dir() else left.unlink()
            self.shm.rmdir()

    def __enter__(self) -> Yard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lines_so_far(path: Path) -> Sequence[Line]:
    """As ``read_lines``, of a file that is written to: the last line may be a part of one."""
    return list(_whole(path))


def _whole(path: Path) -> Iterator[Line]:
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            at, who, what, token, *more = json.loads(line)
            yield Line(at, who, what, token, tuple(more))
