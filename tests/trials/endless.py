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

from .cgroups import cgroup
from .frame import Report, Setup
from .yard import Yard, until

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
        with Yard(setup.scratch, "segments", _CELLS * times + 200, 2) as yard:
            yard.start(str(group))
            for number in range(times):
                yard.work(5)
                stop = threading.Event()
                attacker = threading.Thread(
                    target=lambda stop=stop: sent.append(_attack(yard.port, stop))
                )
                attacker.start()
                assert yard.server is not None
                server = yard.server
                try:
                    until(lambda server=server: server.poll() is not None, "the limit to hold", 60)
                    report.count("servers ended by the limit")
                except RuntimeError:
                    report.wrong(f"time {number}: the server lives on")
                    yard.kill()
                stop.set()
                attacker.join(15)
                yard.start(str(group))
            yard.verdict(report)
    report.figures["MB that it took"] = round(sum(sent) / max(1, times) / 2**20)
    report.figures["limit MB"] = _LIMIT // 2**20
