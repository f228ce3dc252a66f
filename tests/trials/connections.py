"""Hostile connections without end: the server lives, keeps nothing of them, and serves the others.

    attackers ── garbage, halves of handshakes, headers that lead to nothing ──► locator and worker
    an honest trainer measures each of its steps, before and meanwhile

Attackers connect from many addresses of the loopback, so that no port is used up, and reset.  What
they and the server take of two cores is missed by the trainer: its time is an upper bound.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.chaos.driver import Run
from tests.chaos.driver import Setup as Chaos
from tests.chaos.results import percentile
from tests.nursery import environment
from tests.patience import eventually

from .frame import Report, Setup

__all__ = ["run"]

_CONNECTIONS = 1_000_000
_CALM_S = 5.0
_RSS_MB = 20.0
_SLOWER = 2.0
_MB = 2**20
_ATTACK = """
import random, socket, struct, sys
port, seed, n = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
chance = random.Random(seed)
greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48)
ready = b"\\x04\\x1c\\x05READY\\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
openings = [
    b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\x16\\x03\\x01\\x02\\x00",
    greeting[:1], greeting[:12], greeting,
    greeting.replace(b"NULL", b"CURVE"), greeting + b"\\x02" + struct.pack(">Q", 2**62),
    greeting + b"\\x04\\xff" + b"\\xff" * 40, greeting + ready,
    greeting + ready + b"\\x00\\x05hello", greeting + ready + b"\\x01\\x01x" * 20,
    greeting + ready + b"\\x02" + struct.pack(">Q", 2**40), greeting + ready + b"\\x07\\xff",
]
reset = struct.pack("ii", 1, 0)
done = refused = 0
held = []
for number in range(n):
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        one.settimeout(2)
        one.bind((".".join(map(str, [127, *(chance.randrange(1, 255) for _ in range(3))])), 0))
        one.connect(("127.0.0.1", port))
        one.sendall(chance.choice(openings) + chance.randbytes(chance.randrange(64)))
        if number % 50 == 0:
            one.recv(64) if chance.random() < 0.2 else None
            held.append(one)
            if len(held) > 100:
                held.pop(0).close()
            done += 1
            continue
        done += 1
    except OSError:
        refused += 1
    one.close()
print(done, refused)
"""
_HONEST = """
import sys, time
import headrace
with headrace.connect(sys.argv[1], prefetch=0, timeout=60) as feed:
    while True:
        began = time.monotonic()
        batch = next(feed)
        batch.save_state("chain", batch.state("chain"))
        feed._link.settle()
        print(began, time.monotonic() - began, flush=True)
        time.sleep(0.005)
"""


@contextmanager
def _honest(address: str, out: Path) -> Iterator[list[tuple[float, float]]]:
    """A trainer that goes on; its steps, as moment and seconds, are there when it has ended."""
    steps: list[tuple[float, float]] = []
    with open(out, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _HONEST, address],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
        try:
            eventually(lambda: out.read_bytes().count(b"\n") > 20)
            yield steps
            if process.poll() is not None:
                raise RuntimeError(out.read_text()[-500:])
        finally:
            process.kill()
            process.wait()
    for line in out.read_text().splitlines():
        at, _, seconds = line.partition(" ")
        if seconds:
            steps.append((float(at), float(seconds)))


def run(setup: Setup, report: Report) -> None:
    connections = setup.sized(_CONNECTIONS, 200)
    cells = 40_000 + int(connections * 0.6)
    chaos = Chaos("segments", "", (), size=cells, trainers=0, proxied=0)
    with Run(chaos, setup.scratch) as run:
        (server,) = run.servers
        run.tend()
        eventually(lambda: server.children("worker"))
        attacked = [psutil.Process(server.children(role)[0]) for role in ("locator", "worker")]
        with _honest(server.address, setup.scratch / "honest") as steps:
            time.sleep(max(1.0, _CALM_S * min(1.0, 20 * setup.scale)))
            fds, rss = _fds(attacked), _private(attacked)
            began = time.monotonic()
            peak = _attack(server.port, connections, setup.seed, attacked, report)
            ended = time.monotonic()
            after = _settled_fds(attacked, fds)
            grown = _private(attacked) - rss
        if after > fds:
            report.wrong(f"{after} files are open, {fds} were before")
        if server.process is None or server.process.code() is not None:
            report.wrong("the server has ended")
    report.figures["connections/s"] = round(connections / (ended - began))
    report.figures["fds before, most, after"] = f"{fds}, {peak}, {after}"
    report.at_most("RSS grown MB", grown / _MB, _RSS_MB, 1)
    before = [1000 * s for at, s in steps if at < began]
    during = [1000 * s for at, s in steps if began <= at < ended]
    report.count("honest steps before", len(before))
    report.count("honest steps meanwhile", len(during))
    if not during:
        report.wrong("the honest trainer came no further")
        return
    report.figures["honest p99 ms before"] = round(percentile(before, 0.99), 1)
    report.figures["honest p99 ms meanwhile"] = round(percentile(during, 0.99), 1)
    slower = percentile(during, 0.99) / max(percentile(before, 0.99), 1e-3)
    report.at_most("honest p99 slower by", slower, _SLOWER, 1)


def _attack(
    port: int, connections: int, seed: int, attacked: list[psutil.Process], report: Report
) -> int:
    """Run an attacker for each process; return the maximum number of files that they had open."""
    share = str(connections // len(attacked))
    attackers = [
        subprocess.Popen(
            [sys.executable, "-c", _ATTACK, str(port + k), f"{seed} {k}", share],
            stdout=subprocess.PIPE,
        )
        for k in range(len(attacked))
    ]
    peak = 0
    while any(attacker.poll() is None for attacker in attackers):
        peak = max(peak, _fds(attacked))
        time.sleep(0.2)
    for attacker in attackers:
        told = attacker.communicate()[0].split()
        report.count("connections", int(told[0]))
        report.count("not accepted", int(told[1]))
    return peak


def _settled_fds(attacked: list[psutil.Process], fds: int) -> int:
    """Return the number of open files once unfinished handshakes have been given up."""
    deadline = time.monotonic() + 20
    while _fds(attacked) > fds and time.monotonic() < deadline:
        time.sleep(0.1)
    return _fds(attacked)


def _fds(processes: list[psutil.Process]) -> int:
    return sum(process.num_fds() for process in processes)


def _private(processes: list[psutil.Process]) -> int:
    told = [process.memory_info() for process in processes]
    return sum(one.rss - one.shared for one in told)
