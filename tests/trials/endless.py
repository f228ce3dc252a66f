"""A message that never ends: it takes memory that ZeroMQ does not bound, so a limit must end it.

    a raw peer ── part, part, part … (more follows) ──► locator in a cgroup of some 100 MB
        the kernel kills the locator ─► the daemon ends ─► it is started again ─► nothing is lost

There is no encryption here that would refuse the peer beforehand: who can connect can do this, and
the way out is a limit of memory, a restart and a state directory.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from tests.chaos.driver import Run
from tests.chaos.driver import Setup as Chaos
from tests.patience import eventually

from .cgroups import cgroup
from .frame import Report, Setup, tried

__all__ = ["run"]

_TIMES = 5
_CELLS = 1500  # that are done in one time, about
_LIMIT = 400 * 2**20
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
_READY = b"\x04\x1c\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"


def _attack(port: int, stop: threading.Event) -> int:
    """Send parts of one message until the connection breaks; bytes sent."""
    sent = 0
    block = b"\x01\xff" + bytes(255)
    block = block * 1024
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.settimeout(10)
        raw.sendall(_GREETING + _READY)
        heard = b""
        while b"ROUTER" not in heard:  # what comes before it is ready ends the connection
            heard += raw.recv(4096)
        while not stop.is_set():
            raw.sendall(block)
            sent += len(block)
    return sent


def run(setup: Setup, report: Report) -> None:
    times = setup.sized(_TIMES)
    sent = [0]
    limits = {"memory.limit_in_bytes": str(_LIMIT)}, {"memory.max": str(_LIMIT)}
    with cgroup("memory", *limits) as group:
        size = _CELLS * times + 200
        chaos = Chaos("segments", "", (), size=size, trainers=2, proxied=0, within=str(group))
        with Run(chaos, setup.scratch) as run:
            (server,) = run.servers
            for number in range(times):
                run.work(5)
                stop, process = threading.Event(), server.process
                attacker = threading.Thread(
                    target=lambda stop=stop: sent.append(_attack(server.port, stop))
                )
                server.strike()
                attacker.start()
                try:
                    eventually(lambda process=process: process.code() is not None)
                    report.count("servers ended by the limit")
                except AssertionError:
                    report.wrong(f"time {number}: the server lives on")
                    server.kill()
                stop.set()
                attacker.join(15)
            tried(run, report)
    report.figures["MB that it took"] = round(sum(sent) / max(1, times) / 2**20)
    report.figures["limit MB"] = _LIMIT // 2**20
