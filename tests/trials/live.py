"""Logs of live data under random faults: nothing durable is lost, nothing is trained twice.

    three producers, processes ─► proxy ─► headrace serve, two workers ─► proxy ─► two trainers
                                                                                   in this process

Producers are killed, and start again under their names; so are workers, the server with or without
its children, and all of these at once; connections are cut, or deaf one way for a while.  One feed
takes segments as they come, the other sequences that have ended.  The states of both are the sums
of what was trained before, so a step that is lost, twice or out of order shows at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import headrace
import headrace_server as hs
from tests.chaos.proxy import Proxy, proxy_of
from tests.children import children_of, gone
from tests.integration.processes import HERE, Process, serve
from tests.integration.test_live import SCHEMA, Judge, live, segments
from tests.ports import free_port

from .frame import Report, Setup

__all__ = ["ended", "run", "segmented"]

_SECONDS = 600.0
_PRODUCERS = 3
_PATIENCE_S = 300.0
#: Deaths of workers in a minute that a server bears.
_DEATHS, _MINUTE_S = 3, 60.0
_DEAF_S = 1.0
#: Maximum time between two faults.
_REST_S = 2.0
#: Weights by fault.
_FAULTS = {
    "producer": 5,
    "worker": 3,
    "cut": 5,
    "deaf": 2,
    "server": 1,
    "server alone": 1,
    "all": 1,
}


def segmented() -> hs.Pipeline:
    return segments(live())


def ended() -> hs.Pipeline:
    return segments(live().map(dict, schema=SCHEMA))


class _Cluster:
    """The server, a proxy before it, and the producers."""

    def __init__(self, setup: Setup) -> None:
        self._cwd, self._lives = setup.scratch, Counter[str]()
        self._bind = f"tcp://127.0.0.1:{free_port()}"
        self.durable: dict[str, int] = {}
        self.failures: list[str] = []  # errors that ended producers
        self._names = [f"actor-{number}" for number in range(_PRODUCERS)]
        self.producers: dict[str, Process] = {}
        self._start()
        self.proxy: Proxy = proxy_of(self._bind, "ended")
        for name in self._names:
            self.produce(name)

    def _start(self) -> None:
        feeds = [f"{name}=tests.trials.live:{name}" for name in ("segmented", "ended")]
        at = ("--state-dir", "state", "--durability", "process", "--bind", self._bind)
        more = ("--workers", "2", "--partitions", "2", "--lease-ttl", "5")
        self.server, _ = serve(self._cwd, *feeds, *at, *more, warm=False)
        self._deaths: deque[float] = deque(maxlen=_DEATHS)

    def produce(self, name: str, *more: str) -> None:
        life = ("--life", str(self._lives[name]), "--timeout", str(_PATIENCE_S))
        self._lives[name] += 1
        program = (str(HERE / "producer.py"), self.proxy.address, name, *life, *more)
        self.producers[name] = Process(*program, warm=False)

    def end_producer(self, name: str, kill: bool = True) -> None:
        with self.producers.pop(name) as producer:
            if kill:
                producer.kill()
            producer.finish(_PATIENCE_S)
        for event in producer.events:
            self.durable |= event.get("steps", {})
        if "Traceback" in producer.output():
            self.failures.append(producer.output()[-1000:])

    def end_server(self, alone: bool = False) -> None:
        children = children_of(self.server.pid)
        with self.server as server:
            server.kill()
            for child in [] if alone else children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            for child in children:
                assert gone(child), "a child outlives its server"

    def kill_worker(self, chance: Random) -> bool:
        """Kill a worker, if its server bears that."""
        now = time.monotonic()
        if len(self._deaths) == _DEATHS and now - self._deaths[0] < _MINUTE_S:
            return False
        commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in children_of(self.server.pid)}
        workers = [pid for pid, of in commands.items() if b"worker.worker" in of.read_bytes()]
        if workers:
            self._deaths.append(now)
            os.kill(chance.choice(sorted(workers)), signal.SIGKILL)
        return bool(workers)

    def harm(self, fault: str, chance: Random) -> bool:
        """Do harm of a kind, and have all running again; return whether it was possible."""
        if fault == "worker":
            return self.kill_worker(chance)
        if fault == "cut":
            self.proxy.cut()
        elif fault == "deaf":
            self.proxy.drop(chance.choice(["up", "down"]))
            time.sleep(_DEAF_S)
            self.proxy.heal()
        some = {"producer": [chance.choice(self._names)], "all": self._names}.get(fault, [])
        for name in some:
            self.end_producer(name)
        if fault in ("server", "server alone", "all"):
            for producer in self.producers.values():
                if not producer.events:  # one that was never let in gives up without a server
                    producer.wait_for("durable", _PATIENCE_S)
            self.end_server(alone=fault == "server alone")
            self._start()
        for name in some:
            self.produce(name)
        return True

    def finish(self) -> None:
        """Have producers end what they have begun, and close the log."""
        for name in self._names:
            self.end_producer(name)
            self.produce(name, "--sequences", "0")
        for name in self._names:
            self.end_producer(name, kill=False)
        given = {"log": "episodes", "name": "closer", "timeout": _PATIENCE_S}
        with headrace.produce(self.proxy.address, **given) as out:
            out.close_log()


def run(setup: Setup, report: Report) -> None:
    seconds, chance = setup.seconds or max(5.0, _SECONDS * setup.scale), setup.chance("live")
    cluster = _Cluster(setup)
    trained = {"segmented": Judge(), "ended": Judge()}

    def train(name: str) -> None:
        address, patience = cluster.proxy.address, _PATIENCE_S
        with headrace.connect(address, feed=name, timeout=patience) as feed:
            for batch in feed:
                trained[name].train(batch)

    with ThreadPoolExecutor(len(trained)) as pool, contextlib.closing(cluster.proxy):
        try:
            trainers = [pool.submit(train, name) for name in trained]
            until = time.monotonic() + seconds
            while time.monotonic() < until and not any(one.done() for one in trainers):
                (fault,) = chance.choices([*_FAULTS], [*_FAULTS.values()])
                if cluster.harm(fault, chance):
                    report.count(fault)
                    report.count("faults")
                time.sleep(chance.uniform(0, _REST_S))
            cluster.finish()
            for trainer in trainers:
                trainer.result(_PATIENCE_S)
            for one in trained.values():
                one.check(cluster.durable)
        except (AssertionError, headrace.HeadraceError) as error:
            report.wrong(f"{type(error).__name__}: {error}")
        finally:
            for name in [*cluster.producers]:
                cluster.end_producer(name)
            cluster.end_server()
    for failure in cluster.failures:
        report.wrong(failure)
    report.count("durable steps", sum(cluster.durable.values()))
    for name, one in trained.items():
        report.count(f"steps of {name}", sum(one.next.values()))
