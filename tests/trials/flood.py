"""Trainers that ask for all they may and never read: the server's memory stays within its bound.

    200 connections, each: Hello, a window of 64, then a heartbeat after the other, and no recv

The server queues up to 1,024 small messages for each of them, 64 from each, and batches, which lie
in the slab anyway.  More of their messages wait in their own connections.  The rows lie in a mapped
file: in private memory, a reader's chunks would grow with its speed, by more than the flood does.
When the flood has ended, an honest trainer gets every row.
"""

from __future__ import annotations

import time

import numpy as np
import psutil
import zmq

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Get,
    Hello,
    Pulse,
    Renew,
    Step,
    Welcome,
)
from tests.located import workers_at

from .frame import Report, Setup

__all__ = ["run"]

_CLIENTS = 200
_SECONDS = 20.0
_ROWS = 4096
_FLOATS = 4096  # of a row: a batch of 4 has 64 kB
_QUEUE = 1024 + 64
_MESSAGE = 1024  # with what ZeroMQ keeps of one
_BATCH = 64 * 1024
_MB = 2**20


def run(setup: Setup, report: Report) -> None:
    clients = setup.sized(_CLIENTS, 4)
    seconds = max(1.0, _SECONDS * min(1.0, setup.scale * 2))
    rows = setup.scratch / "rows.npz"
    np.savez(rows, x=np.repeat(np.arange(_ROWS, dtype=np.float32)[:, None], _FLOATS, axis=1))
    source = hs.read_npz(str(rows))
    with hs.run(source.batch(4), slab_bytes=64 * _MB, lease_ttl_s=8.0) as server:
        processes = [psutil.Process(pid) for pid in server.pids.values()]  # locator and owners
        with zmq.Context() as context:
            context.set(zmq.MAX_SOCKETS, 4 * clients + 64)
            headrace.connect(server.address, timeout=60).close()  # the feed is open
            before = _private(processes)
            (worker,) = workers_at(server.address)
            peers = [_deaf(context, worker, n) for n in range(clients)]
            sent, peak = 0, before
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                for peer, session in peers:
                    for _ in range(8):
                        try:
                            peer.send(_heartbeat(session), zmq.NOBLOCK)
                        except zmq.Again:
                            report.count("heartbeats that could not be sent")
                            break
                        sent += 1
                peak = max(peak, _private(processes))
            for peer, _ in peers:
                peer.close(linger=0)
        report.count("trainers that do not read", clients)
        report.count("heartbeats", sent)
        bound = clients * (_QUEUE * _MESSAGE + _BATCH) + 32 * _MB
        report.figures["bound MB"] = round(bound / _MB)
        grown = peak - before
        report.at_most("private memory grown MB", grown / _MB, bound / _MB, 1)
        if grown > bound:
            report.wrong("the server's memory went past its bound")
        with headrace.connect(server.address, timeout=60) as feed:
            got = sum(batch.rows for batch in feed)
        report.count("rows to the honest trainer", got)
        if got != _ROWS:
            report.wrong(f"the honest trainer got {got} of {_ROWS} rows")


def _deaf(context: zmq.Context[zmq.Socket[bytes]], address: str, number: int):  # type: ignore[no-untyped-def]
    """A connection that was admitted, has asked for batches, and reads nothing more."""
    peer = context.socket(zmq.DEALER)
    peer.linger, peer.rcvhwm, peer.sndhwm = 0, 1, 16
    peer.setsockopt(zmq.RCVBUF, 4096)
    peer.connect(address)
    peer.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "deaf", "", b"deaf %d" % number)))
    welcome: object = Pulse(0)
    while isinstance(welcome, Pulse):  # until the feed is open
        if not peer.poll(20_000):
            raise RuntimeError(f"trainer {number} was not answered")
        welcome = FROM_SERVER.decode(peer.recv_multipart()[0])
    assert isinstance(welcome, Welcome), welcome
    peer.send(
        FROM_TRAINER.encode(Step(welcome.session, gets=tuple(Get(1 + n, 0) for n in range(64))))
    )
    return peer, welcome.session


def _heartbeat(session: int) -> bytes:
    return FROM_TRAINER.encode(Renew(session, 64))


def _private(processes: list[psutil.Process]) -> int:
    told = [process.memory_info() for process in processes]
    return sum(one.rss - one.shared for one in told)
