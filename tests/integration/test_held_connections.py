"""Strangers hold connections open at a server with few descriptors: trainers do not notice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest

import headrace
from headrace_proto.credentials import load_keys
from headrace_server.cli.keygen import make_pair
from tests.located import workers_at
from tests.patience import PATIENCE_S, eventually

from .honest import honest_trainer
from .processes import serve

FILES = 256
LIMITED = ["sh", "-c", f'ulimit -n {FILES}; exec "$0" "$@"']
ROWS = 12_000
FEEDS = f"""
import headrace_server as hs


def feed():
    return hs.from_examples([{{"i": k}} for k in range({ROWS})]).batch(10)
"""


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


@pytest.mark.parametrize(
    ("keys", "place"), [(False, "server.locator"), (True, "worker.worker")], ids=["open", "keys"]
)
def test_trainers_get_in_and_go_on_while_strangers_hold_more_than_a_process_can_open(
    keys, place, tmp_path, monkeypatch, over_tcp
):
    (tmp_path / "feeds.py").write_text(FEEDS)
    if keys:
        make_pair(tmp_path / "keys", None)
        make_pair(tmp_path / "keys", "trainer")
        monkeypatch.setenv("HEADRACE_KEYS", str(tmp_path / "keys"))
    process, address = serve(
        tmp_path, "feeds.py:feed", "--http", "127.0.0.1:0", "--workers", "1", before=LIMITED
    )
    with process:
        page = (process.next_line() or "").split()[-1]

        def refused() -> int:
            with urllib.request.urlopen(f"{page}/status.json", timeout=PATIENCE_S) as answer:
                return int(json.load(answer)["access"]["refused"].get("connections", 0))

        children = psutil.Process(process.pid).children(recursive=True)
        held = next(c for c in children if f"headrace_server.{place}" in c.cmdline())
        found = load_keys(str(tmp_path / "keys")) if keys else None
        (worker,) = workers_at(address, found)
        port = urlsplit(address if place == "server.locator" else worker).port
        assert port is not None
        with (
            honest_trainer(SimpleNamespace(address=address), ROWS),  # type: ignore[arg-type]
            flood(port, opening("silent", keys), 10**6, 300, 300),
            flood(port, opening("greeted", keys), 10**6, 300, 300),
        ):
            eventually(
                refused
            )  # from now on strangers hold all the connections that the server allows them
            for _ in range(3):
                with headrace.connect(address, commit="explicit", timeout=PATIENCE_S) as newcomer:
                    assert next(newcomer).rows == 10
        assert held.num_fds() < FILES
        assert "the limit of open files (256" in process.output()
