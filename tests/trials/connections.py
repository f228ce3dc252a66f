"""Hostile connections without end: the server lives, keeps nothing of them, and serves the others.

    attackers ── garbage, halves of handshakes, headers that lead to nothing ──► locator and worker
    an honest trainer waits for the answer to each of its commits, before and meanwhile

Attackers connect from many addresses of the loopback, so that no port is used up, and reset.  What
they and the server take of two cores is missed by the trainer: its time is an upper bound.
"""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from tests.chaos.driver import Run
from tests.chaos.driver import Setup as Chaos
from tests.chaos.results import percentile

from .frame import Report, Setup, private_bytes, waits_ms

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


def run(setup: Setup, report: Report) -> None:
    connections = setup.sized(_CONNECTIONS, 200)
    cells = 40_000 + int(connections * 0.6)
    chaos = Chaos("segments", "", (), size=cells, trainers=1, proxied=0, far=0, step_s=0.005)
    with Run(chaos, setup.scratch) as run:
        (server,) = run.servers
        run.work(20)
        attacked = [psutil.Process(server.children(role)[0]) for role in ("locator", "worker")]
        time.sleep(max(1.0, _CALM_S * min(1.0, 20 * setup.scale)))
        fds, rss = _fds(attacked), private_bytes(attacked)
        began = time.monotonic()
        calm = waits_ms(run)
        peak = _attack(server.port, connections, setup.seed, attacked, report)
        ended = time.monotonic()
        during = waits_ms(run, began)
        after = _settled_fds(attacked, fds)
        grown = private_bytes(attacked) - rss
        run.tend()
    if after > fds:
        report.wrong(f"{after} files are open, {fds} were before")
    for finding in run.happenings.findings:
        report.wrong(f"{finding.law}: {finding.text}")
    report.figures["connections/s"] = round(connections / (ended - began))
    report.figures["fds before, most, after"] = f"{fds}, {peak}, {after}"
    report.at_most("RSS grown MB", grown / _MB, _RSS_MB, 1)
    report.count("honest commits before", len(calm))
    report.count("honest commits meanwhile", len(during))
    if not during:
        report.wrong("the honest trainer came no further")
        return
    before, meanwhile = percentile(calm, 0.99), percentile(during, 0.99)
    report.figures["honest p99 ms before"] = round(before, 1)
    report.figures["honest p99 ms meanwhile"] = round(meanwhile, 1)
    report.at_most("honest p99 slower by", meanwhile / max(before, 1e-3), _SLOWER, 1)


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
