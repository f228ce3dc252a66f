"""One run: servers and trainers that are started again whenever they end, and faults.

    while faults:   harm, and undo it when its time has come ──► calm: all run to the end ──► judge

Whatever dies is started again at once, as an init system would.  The run is over when each trainer
has seen the end of the feed; when nobody writes a line for ``patience_s`` it has stalled.

Several servers have a share of the feed each.  Servers and trainers are processes of this host, and
proxies stand before some trainers; or each has a host of its own (``hosts.py``), whose link is cut.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.patience import PATIENCE_S, eventually

from .faults import Plan, send
from .feeds import PARTITIONS, cells_wanted
from .happenings import Happenings
from .hosts import Host, Network
from .judge import Case, Finding, Harm, Verdict, judge
from .ledger import Line, read_lines
from .processes import Process
from .proxy import Proxy
from .served import Server
from .stores import tokens_of
from .trainer import FAR, STEP_S

__all__ = ["Outcome", "Run", "Setup", "run"]

_POLL_S = 0.02
#: Room for the stores of a run with their journals (4 MiB each), several times.
_DISK = "64m"
#: Exit codes of a trainer that has seen the end, has recorded an error, or was killed.
_TRAINER_CODES = (0, 3, -signal.SIGKILL)
#: Bytes in the ledger once trainers have done some steps.
_WORK_BYTES = 6000


@dataclass(frozen=True, slots=True)
class Setup:
    """A run, and its faults."""

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
    step_s: float = STEP_S  # the longest of a trainer
    lease_s: float = 1.5
    patience_s: float = PATIENCE_S
    servers: int = 1  # each has a share
    hosts: bool = False  # each server and each trainer is on a host of its own, none is proxied
    most: int = 1_000_000  # faults
    restless: bool = (
        False  # whether trainers are interrupted, leave, and ask for all sorts of things
    )
    within: str = ""  # a cgroup for the processes of servers


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    setup: Setup
    verdict: Verdict
    faults: Counter[str]
    seconds: float
    lives: int = 0  # of servers


class Run:
    """Servers and trainers, which faults of a plan or others harm."""

    def __init__(
        self, setup: Setup, directory: Path, own_disk: bool = False, hosts: Sequence[Host] = ()
    ) -> None:
        self.setup = setup
        self.slots, self.lease_s = setup.trainers, setup.lease_s
        self.happenings = Happenings()
        self._directory = directory
        self.ledger = directory / "ledger"
        self.ledger.touch()
        self._calm = directory / "calm"
        places = [*hosts[: setup.servers]] or [None] * setup.servers
        self.servers = [
            Server(index, setup, directory, self.happenings, own_disk, place)
            for index, place in enumerate(places)
        ]
        self._homes: list[list[str]] = [host.inside for host in hosts[setup.servers :]]
        self._addresses = [",".join(server.address for server in self.servers)] * setup.trainers
        names = [f"s{n}" for n in range(setup.servers)] + [f"t{n}" for n in range(setup.trainers)]
        self.links: list[tuple[str, Host | Proxy]] = list(zip(names, hosts, strict=False))
        self._proxies: list[Proxy] = []
        for slot in range(0 if hosts else setup.proxied):
            proxies = [Proxy(*server.ports) for server in self.servers]
            self._addresses[slot] = ",".join(proxy.address for proxy in proxies)
            self.links += [(f"t{slot}", proxy) for proxy in proxies]
            self._proxies += proxies
        self._trainers: list[Process | None] = [None] * setup.trainers
        self._ended = [False] * setup.trainers
        self._lives = [0] * setup.trainers

    # Looking after it

    def tend(self) -> None:
        """Restart processes that have ended; undo faults whose time is over."""
        now = time.monotonic()
        self.happenings.undo(now)
        for server in self.servers:
            server.tend(now)
        for slot, trainer in enumerate(self._trainers):
            if trainer is not None and trainer.code() is not None:
                self._ended[slot] = trainer.code() == 0
                if trainer.code() not in _TRAINER_CODES:
                    who = f"t{slot}.{self._lives[slot] - 1}"
                    told = f"{who} with code {trainer.code()}"
                    self.happenings.find("a trainer ends well", told)
                trainer.close()
                self._trainers[slot] = None
            if self._trainers[slot] is None and not self._ended[slot]:
                self._start_trainer(slot)

    def _start_trainer(self, slot: int) -> None:
        life = self._lives[slot]
        self._lives[slot] += 1
        arguments = [self._addresses[slot], self.setup.mode, str(self.ledger), f"t{slot}.{life}"]
        seed = zlib.crc32(f"{self.setup.seed} {slot} {life}".encode())
        arguments += [str(seed), str(self._calm)]
        arguments += [str(self.lease_s), str(2 * self.setup.patience_s), str(self.setup.step_s)]
        arguments += ["restless"] * self.setup.restless
        log = self._directory / f"trainer-{slot}.log"
        inside = self._homes[slot] if self._homes else []
        far = {FAR: "1"} if slot < self.setup.far and not inside else {}
        self._trainers[slot] = Process("tests.chaos.trainer", arguments, log, inside, **far)

    def said(self, what: str, since: float = 0.0) -> list[Line]:
        """Return the lines of a kind that trainers have written after a moment."""
        return [line for line in read_lines(self.ledger) if line.what == what and line.at > since]

    def work(self, acks: int = 1) -> None:
        """Wait until ``acks`` more commits are acknowledged, or the feed is over."""
        since = time.monotonic()

        def worked() -> bool:
            self.tend()
            return self.over or len(self.said("ok", since)) >= acks

        eventually(worked)

    @property
    def over(self) -> bool:
        return all(self._ended)

    def calm(self) -> None:
        """End all faults, and let trainers work without rests."""
        self.happenings.undo()
        self._calm.touch()

    def judged(self) -> Verdict:
        """Let all come to the end of the feed, stop the servers, and judge."""
        setup, happenings = self.setup, self.happenings
        self.calm()
        stalled = self._to_the_end()
        lasting = setup.durability != "off"
        tokens = [] if lasting else self._tokens()
        self.end()
        tokens = self._tokens() if lasting else tokens
        case = Case(
            setup.mode,
            cells_wanted(setup.mode, setup.size, setup.partitions),
            read_lines(self.ledger),
            tokens,
            happenings.harms,
            setup.lease_s,
            setup.servers,
            setup.restless,
            happenings.full if lasting else [Harm(0.0, math.inf)],
        )
        verdict = judge(case)
        verdict.findings += happenings.findings
        if stalled:
            verdict.findings.insert(0, Finding("the run comes to its end", stalled))
        twice = [token for token, n in Counter(tokens).items() if n > 1]
        verdict.add("a token is committed once", twice)
        return verdict

    def _tokens(self) -> list[int]:
        stores = [store for server in self.servers for store in server.journals()]
        return [token for store in stores for token in tokens_of(store)]

    def _to_the_end(self) -> str:
        size, since, patience_s = -1, time.monotonic(), self.setup.patience_s
        while not self.over:
            self.tend()
            time.sleep(_POLL_S)
            now = self.ledger.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > patience_s:
                return f"no trainer has heard or done anything for {patience_s:g} s"
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop the servers by SIGTERM, and kill processes that are left."""
        self.calm()
        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(Server.end, self.servers))
        for trainer in self._trainers:
            if trainer is not None:
                trainer.kill()
                trainer.close()
        for proxy in self._proxies:
            proxy.close()

    # Harm

    def kill_trainer(self, slot: int) -> bool:
        trainer = self._trainers[slot]
        if trainer is None:
            return False
        trainer.kill()
        return True

    def stop_trainer(self, slot: int, seconds: float) -> bool:
        trainer = self._trainers[slot]
        pids = [] if trainer is None else [trainer.pid]
        self.happenings.note(seconds, f"t{slot}")
        self.happenings.later(seconds, lambda: send(pids, signal.SIGCONT))
        return send(pids, signal.SIGSTOP)

    def network(self, number: int, what: str, seconds: float) -> bool:
        name, link = self.links[number]
        self.happenings.note(seconds + 1.0, name)
        if what == "cut":
            link.cut()
        elif what == "slow":
            link.slow()
        else:
            link.drop(what)
        self.happenings.later(seconds, link.heal)
        return True


def run(setup: Setup, directory: Path) -> Outcome:
    """Run, harm, wait for the end, judge."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        disks = [directory / "state" / str(index) for index in range(setup.servers)]
        full = "disk full" in setup.kinds
        made = [stack.enter_context(_disk(disk, full)) for disk in disks]
        hosts: list[Host] = []
        if setup.hosts:
            hosts = stack.enter_context(Network(setup.servers + setup.trainers)).hosts
        run = stack.enter_context(Run(setup, directory, all(made), hosts))
        faults = _harm(run, setup)
        verdict = run.judged()
    seconds = time.monotonic() - began
    lives = sum(server.lives for server in run.servers)
    return Outcome(setup, verdict, +faults, seconds, lives)


def _harm(run: Run, setup: Setup) -> Counter[str]:
    """Cause faults until the time or the feed is over, and at least one; return them by kind."""
    plan = Plan(setup.seed, setup.kinds, setup.pace_s)
    faults: Counter[str] = Counter()
    last = until = time.monotonic() + setup.seconds + setup.patience_s  # if none is ever possible
    begun = False
    due, written = 0.0, _WORK_BYTES

    def ends() -> float:
        return until if faults.total() else last

    while time.monotonic() < ends() and not run.over and faults.total() < setup.most:
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


@contextlib.contextmanager
def _disk(directory: Path, wanted: bool) -> Iterator[bool]:
    """Yield a small file system for states, where a fault needs one and this user may mount it."""
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(directory)]
    made = wanted and not os.geteuid() and shutil.which("mount") is not None
    made = made and not subprocess.run(mount, check=False, capture_output=True).returncode
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", directory], check=True)
