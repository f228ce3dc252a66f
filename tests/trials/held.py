"""Strangers hold connections open at a server with few descriptors: trainers get in and go on.

    flood ── connects, says nothing or greets, and holds ──► locator, worker (ulimit -n 1024)
    an honest trainer goes on; newcomers join, take a batch and leave, one after the other

Each of the eight floods (silent or greeted, without or with keys, of either process) holds more
connections at once than the process has descriptors.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import headrace
from headrace_proto.errors import HeadraceError
from headrace_server.cli.keygen import make_pair
from tests.ports import free_port

from .connections import honest
from .frame import Report, Setup, percentile
from .yard import Yard

__all__ = ["flood", "opening", "run"]

_FILES = 1024
_ATTEMPTS = 10_000
_PER_SECOND = 2000
_HELD = 8_000  # at once, or what one process may open
#: Maximum wait of a newcomer that the trial accepts, and the one after which it gives up.
_WAIT_S = 2.0
_KEPT_OUT_S = 30.0
_FLOOD = """
import resource, socket, sys, time
port, opening = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
attempts, per_second, most = map(int, sys.argv[3:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
most = min(most, hard - 100)
resource.setrlimit(resource.RLIMIT_NOFILE, (most + 100, hard))
held, done, began = [], 0, time.monotonic()
while done < attempts:
    while done < min(attempts, (time.monotonic() - began) * per_second):
        done += 1
        one = socket.socket()
        one.setblocking(False)
        held.append(one)
        try:
            one.connect(("127.0.0.1", port))
        except OSError:
            pass
        try:
            one.send(opening)
        except OSError:
            pass
        if len(held) > most:
            held.pop(0).close()
    time.sleep(0.002)
"""


def opening(kind: str, keys: bool) -> bytes:
    """Bytes that each stranger sends: none, or all of ZeroMQ's handshake that needs no key."""
    if kind == "silent":
        return b""
    mechanism = b"CURVE" if keys else b"NULL"
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)
    return greeting if keys else greeting + b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


@contextlib.contextmanager
def flood(
    port: int, first: bytes, attempts: int, per_second: int, held: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that makes ``attempts`` connections and holds the last ones open."""
    numbers = map(str, (attempts, per_second, held))
    process = subprocess.Popen([sys.executable, "-c", _FLOOD, str(port), first.hex(), *numbers])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(setup: Setup, report: Report) -> None:
    attempts = setup.sized(_ATTEMPTS, 500)
    waits: list[float] = []
    for keys in (False, True):
        with contextlib.ExitStack() as stack:
            scratch = setup.scratch / f"keys-{keys}"
            scratch.mkdir()
            cells = 40_000 + attempts
            yard = stack.enter_context(Yard(scratch, "segments", cells, 0, files=_FILES))
            directory = str(scratch / "keys")
            if keys:
                make_pair(scratch / "keys", None)
                make_pair(scratch / "keys", "trainer")
            http = f"127.0.0.1:{free_port()}"
            options = ["--http", http, *(["--keys", directory] if keys else [])]
            yard.start("", *options)
            with honest(yard, directory if keys else "") as steps:
                began = time.monotonic()
                ways = itertools.product(("silent", "greeted"), (yard.port, yard.port + 1))
                for kind, port in ways:
                    newcomers = _newcomers(
                        yard, port, kind, directory if keys else None, attempts, report
                    )
                    waits += newcomers
                    report.count("newcomers", len(newcomers))
                    report.count("connections", attempts)
                ended = time.monotonic()
                refused = _refused(http)
            during = [seconds for at, seconds in steps if began <= at < ended]
            report.count("honest steps", len(during))
            report.count("refused as connections", refused)
            if not during or began + max(during) > ended:
                report.wrong("the honest trainer came no further")
            if yard.server is None or yard.server.poll() is not None:
                report.wrong("the server has ended")
            if setup.scale >= 1 and not refused:
                report.wrong("no connection was refused: this was no flood")
    report.figures["newcomer's median s"] = round(percentile(waits, 0.5), 2)
    report.at_most("newcomer's longest s", max(waits), _WAIT_S)


def _newcomers(
    yard: Yard, port: int, kind: str, keys: str | None, attempts: int, report: Report
) -> list[float]:
    """Return the waits of newcomers until the flood is over; at least one."""
    waits = []
    first = opening(kind, keys is not None)
    with flood(port, first, attempts, _PER_SECOND, _HELD) as flooding:
        while flooding.poll() is None or not waits:
            began = time.monotonic()
            try:
                with headrace.connect(yard.address, keys=keys, timeout=_KEPT_OUT_S) as feed:
                    next(feed)
            except HeadraceError as error:
                report.wrong(f"{kind}: a newcomer was kept out: {error}")
            waits.append(time.monotonic() - began)
            time.sleep(0.1)
    return waits


def _refused(http: str) -> int:
    with urllib.request.urlopen(f"http://{http}/status.json", timeout=20) as answer:
        return int(json.load(answer)["access"]["refused"].get("connections", 0))
