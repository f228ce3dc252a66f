"""One run: a server and trainers that are started again whenever they end, and faults.

    while faults:   harm, and undo it when its time has come ──► calm: all run to the end ──► judge

Whatever dies is started again at once, as an init system would.  The run is over when each trainer
has seen the end of the feed; when nobody writes a line for ``patience_s`` it has stalled.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
import signal
import subprocess
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port

from .faults import Plan, fill_disk, send
from .feeds import PARTITIONS, cells_wanted
from .judge import Case, Finding, Harm, Verdict, judge
from .ledger import Line, read_lines
from .processes import Process, living
from .proxy import Proxy
from .stores import tokens_of
from .trainer import FAR

__all__ = ["Outcome", "Setup", "run"]

_POLL_S = 0.02
#: Room for the stores of a run with their journals (4 MiB each), several times.
_DISK = "64m"
#: It has seen the end, has noted an error, or was killed.
_TRAINER_CODES = (0, 3, -signal.SIGKILL)
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: The processes of a server are gone so long after it.
_LEFT_S = 20.0
#: So much is in the ledger when trainers have done some steps.
_WORK_BYTES = 6000


@dataclass(frozen=True, slots=True)
class Setup:
    """What is run, and how it is harmed."""

    mode: str
    seed: str
    kinds: tuple[str, ...]
    seconds: float = 8.0  # of faults
    pace_s: float = 0.4  # between them
    size: int = 4000  # cells
    trainers: int = 3
    proxied: int = 2  # of them
    far: int = 1  # of these: they do not see the server's memory, as on another host
    workers: int = 2
    partitions: int = PARTITIONS
    durability: str = "power"  # "off": without a state directory, so no server may end
    lease_s: float = 1.5
    patience_s: float = 25.0
    bug: str = ""  # that is planted in the server


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    setup: Setup
    verdict: Verdict
    faults: Counter[str]
    seconds: float
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    lives: int = 0


class _Run:
    """The target of the faults."""

    def __init__(self, setup: Setup, directory: Path, own_disk: bool) -> None:
        self.setup = setup
        self.slots, self.proxied, self.lease_s = setup.trainers, setup.proxied, setup.lease_s
        self.worker_deaths = 0
        self._directory = directory
        self._state = directory / "state"
        self._memory = Path(tempfile.mkdtemp(prefix="headrace-chaos-", dir=_MEMORY))
        self._own_disk = own_disk
        self.ledger = directory / "ledger"
        self.ledger.touch()
        self._calm = directory / "calm"
        self._port = free_port()
        self._proxies = [Proxy(self._port) for _ in range(setup.proxied)]
        self._server: Process | None = None
        self._next_start = 0.0
        self._trainers: list[Process | None] = [None] * setup.trainers
        self._ended = [False] * setup.trainers
        self._lives = [0] * setup.trainers
        self._undo: list[tuple[float, int, Callable[[], object]]] = []
        self.harms: list[Harm] = []
        self.kills: list[tuple[float, str, str]] = []  # when, kind, whom
        self.server_lives = 0
        self._sessions: set[int] = set()  # of the processes of all lives of the server
        self._struck = False  # whether this life of the server is to end
        self._full_until = 0.0  # when the disk has room again
        self.findings: list[Finding] = []

    # Looking after it

    def tend(self) -> None:
        """Start what has ended; undo what has lasted long enough."""
        now = time.monotonic()
        while self._undo and self._undo[0][0] <= now:
            heapq.heappop(self._undo)[2]()
        if self._server is not None and self._server.code() is not None:
            self._note(0.0)  # by itself, or killed
            if not self._struck:
                self._find("a server ends when it is told to", f"code {self._server.code()}")
            self._server.close()
            self._server, self._next_start = None, now + 0.05
        if self._server is None and now >= self._next_start:
            self.server_lives += 1
            self.worker_deaths = 0
            self._struck = now < self._full_until  # a start without room is refused
            setup = self.setup
            arguments = [setup.mode, str(setup.size), f"tcp://127.0.0.1:{self._port}"]
            arguments += [setup.durability, str(self._state), str(self._memory)]
            arguments += [str(setup.workers), str(setup.partitions), str(setup.lease_s)]
            log = self._directory / "server.log"
            self._server = Process("tests.chaos.server", arguments, log, setup.bug)
            self._sessions.add(self._server.pid)
        for slot, trainer in enumerate(self._trainers):
            if trainer is not None and trainer.code() is not None:
                self._ended[slot] = trainer.code() == 0
                if trainer.code() not in _TRAINER_CODES:
                    who = f"t{slot}.{self._lives[slot] - 1}"
                    self._find("a trainer ends well", f"{who} with code {trainer.code()}")
                trainer.close()
                self._trainers[slot] = None
            if self._trainers[slot] is None and not self._ended[slot]:
                self._start_trainer(slot)

    def _find(self, law: str, text: str) -> None:
        self.findings.append(Finding(law, text))

    def _start_trainer(self, slot: int) -> None:
        life = self._lives[slot]
        self._lives[slot] += 1
        address = f"tcp://127.0.0.1:{self._port}"
        if slot < self.proxied:
            address = self._proxies[slot].address
        arguments = [address, self.setup.mode, str(self.ledger), f"t{slot}.{life}"]
        seed = zlib.crc32(f"{self.setup.seed} {slot} {life}".encode())
        arguments += [str(seed), str(self._calm)]
        arguments += [str(self.lease_s), str(2 * self.setup.patience_s)]
        log = self._directory / f"trainer-{slot}.log"
        far = {FAR: "1"} if slot < self.setup.far else {}
        self._trainers[slot] = Process("tests.chaos.trainer", arguments, log, **far)

    @property
    def over(self) -> bool:
        return all(self._ended)

    def calm(self) -> None:
        """No more faults, and no more waiting."""
        while self._undo:
            heapq.heappop(self._undo)[2]()
        self._calm.touch()

    def journals(self) -> list[Path]:
        """The files of what is committed; without a state directory until the server ends."""
        if self.setup.durability == "off":
            return sorted(self._memory.glob("*/journals/feeds/*/*.journal"))
        return sorted(self._state.glob("feeds/*/*.journal"))

    def end(self) -> None:
        """The server is told to stop, and all that may be left is killed."""
        self.calm()
        if self._server is not None:
            self._server.close()
            deadline = time.monotonic() + _LEFT_S
            while self._server.code() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            while (left := living(self._sessions)) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            files = [str(path.relative_to(self._memory)) for path in self._memory.rglob("*")]
            if not self._struck and (left or files):
                self._find("nothing is left behind", f"processes {left}, files {files[:5]}")
            self._server.kill()
        shutil.rmtree(self._memory, ignore_errors=True)
        for trainer in self._trainers:
            if trainer is not None:
                trainer.kill()
                trainer.close()
        for proxy in self._proxies:
            proxy.close()

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        heapq.heappush(self._undo, (time.monotonic() + seconds, len(self._undo), undo))

    def _note(self, seconds: float, to: str = "") -> None:
        now = time.monotonic()
        self.harms.append(Harm(now, now + seconds, to))

    # Harm

    def children(self, role: str) -> list[int]:
        if self._server is None:
            return []
        found = self._server.children().items()
        return sorted(pid for pid, told in found if f"headrace_server.{role}.{role}" in told)

    def kill_server(self) -> None:
        self._note(2.0)
        self._struck = True
        if self._server is not None:
            self.kills.append((time.monotonic(), "server", ""))
            self._server.kill()

    def stop_server(self) -> bool:
        """SIGTERM, as a planned restart: it waits for commits, and says that it will be back."""
        self._note(2.0)
        self._struck = True
        self.kills.append((time.monotonic(), "server", ""))
        return self._server is not None and send([self._server.pid], signal.SIGTERM)

    def kill_supervisor(self) -> None:
        self._note(2.0)
        self._struck = True
        if self._server is not None:
            self.kills.append((time.monotonic(), "server", ""))
            self._server.kill(group=False)

    def orphan(self, pids: list[int], after_s: float, seconds: float) -> bool:
        """Workers sleep, their server dies, and they wake when there is another."""
        self._later(after_s, self.kill_supervisor)
        return self.stop(pids, None, after_s + seconds)

    def kill_front(self) -> bool:
        self._note(2.0)
        self._struck = True
        self.kills.append((time.monotonic(), "server", ""))
        return send(self.children("front"), signal.SIGKILL)

    def kill_worker(self, pids: list[int]) -> bool:
        self._note(2.0)
        self.worker_deaths += 1
        return send(pids, signal.SIGKILL)

    def trainer_pids(self, slot: int) -> list[int]:
        trainer = self._trainers[slot]
        return [] if trainer is None else [trainer.pid]

    def kill_trainer(self, slot: int) -> bool:
        trainer = self._trainers[slot]
        if trainer is None:
            return False
        self.kills.append((time.monotonic(), "trainer", f"t{slot}.{self._lives[slot] - 1}"))
        trainer.kill()
        return True

    def stop(self, pids: list[int], slot: int | None, seconds: float) -> bool:
        self._note(seconds, "" if slot is None else f"t{slot}")
        self._later(seconds, lambda: send(pids, signal.SIGCONT))
        return send(pids, signal.SIGSTOP)

    def network(self, slot: int, what: str, seconds: float) -> bool:
        proxy = self._proxies[slot]
        self._note(seconds + 1.0, f"t{slot}")
        if what == "cut":
            proxy.cut()
            return True
        if what == "slow":
            proxy.delay(0.02)
        else:
            proxy.drop(what)
        self._later(seconds, proxy.heal)
        return True

    def crowd_disk(self, seconds: float) -> bool:
        if not self._own_disk or not self._state.exists():
            return False
        self._note(seconds + 1.0)
        self._full_until = time.monotonic() + seconds + 1.0
        filler = fill_disk(self._state)
        self._later(seconds, lambda: filler.unlink(missing_ok=True))
        return True


def run(setup: Setup, directory: Path) -> Outcome:
    """Run, harm, wait for the end, judge."""
    began = time.monotonic()
    wanted = cells_wanted(setup.mode, setup.size, setup.partitions)
    with _disk(directory / "state", "disk full" in setup.kinds) as own_disk:
        run = _Run(setup, directory, own_disk)
        try:
            faults = _harm(run, setup)
            run.calm()
            stalled = _to_the_end(run, setup.patience_s)
            if setup.durability == "off":
                tokens = _tokens(run)
        finally:
            run.end()
        if setup.durability != "off":
            tokens = _tokens(run)
    lines = read_lines(run.ledger)
    verdict = judge(Case(setup.mode, wanted, lines, tokens, run.harms, setup.lease_s))
    verdict.findings += run.findings
    if stalled:
        verdict.findings.insert(0, Finding("the run comes to its end", stalled))
    if len(tokens) != len(set(tokens)):
        verdict.add("a token is committed once", [t for t, n in Counter(tokens).items() if n > 1])
    recovered = _recoveries(lines, run.kills)
    seconds = time.monotonic() - began
    return Outcome(setup, verdict, +faults, seconds, recovered, run.server_lives)


def _tokens(run: _Run) -> list[int]:
    return [token for store in run.journals() for token in tokens_of(store)]


def _harm(run: _Run, setup: Setup) -> Counter[str]:
    """Faults until the time is over, or the feed; how many there were of each kind."""
    plan = Plan(setup.seed, setup.kinds, setup.pace_s)
    faults: Counter[str] = Counter()
    until = time.monotonic() + setup.seconds + setup.patience_s  # if nothing ever begins
    begun = False
    due, written = 0.0, _WORK_BYTES
    while time.monotonic() < until and not run.over:
        run.tend()
        time.sleep(_POLL_S)
        if time.monotonic() < due or run.ledger.stat().st_size < written:
            continue
        if not begun:  # the time of faults counts from the first work, however slow the start was
            begun, until = True, time.monotonic() + setup.seconds
        kind = plan.strike(run)
        faults[kind] += bool(kind)
        due = time.monotonic() + plan.wait_s()
        at_work = plan.waits_for_work(kind)
        written = run.ledger.stat().st_size + _WORK_BYTES if at_work else 0
    return faults


def _to_the_end(run: _Run, patience_s: float) -> str:
    size, since = -1, time.monotonic()
    while not run.over:
        run.tend()
        time.sleep(_POLL_S)
        now = run.ledger.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > patience_s:
            return f"no trainer has heard or done anything for {patience_s:g} s"
    return ""


@contextlib.contextmanager
def _disk(directory: Path, wanted: bool) -> Iterator[bool]:
    """A small disk of its own for states, where one is wanted and this user may make one."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(directory)]
    made = wanted and not os.geteuid() and shutil.which("mount") is not None
    made = made and not subprocess.run(mount, check=False, capture_output=True).returncode
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", directory], check=True)


def _recoveries(lines: list[Line], kills: list[tuple[float, str, str]]) -> dict[str, list[float]]:
    """Seconds from a kill to the first batch of the next server, or of the same rows elsewhere."""
    found: dict[str, list[float]] = {"server": [], "trainer": []}
    takes = [line for line in lines if line.what == "take"]
    for at, kind, whom in kills:
        before = [line for line in takes if line.at <= at]
        if kind == "server":
            term = max((line.token >> 32 for line in before), default=0)
            after = (line.at for line in takes if line.at > at and line.token >> 32 > term)
        else:
            held = [line for line in before if line.who == whom][-1:]
            rows = {tuple(cell) for line in held for cell in line.more[0]}
            after = (
                line.at
                for line in takes
                if line.at > at and not rows.isdisjoint(map(tuple, line.more[0]))
            )
        first = min(after, default=None)
        if first is not None:
            found[kind].append(first - at)
    return found
