"""Trainers that were let in and then do their worst: the others train on, and their answers come.

    attacker ── floods, lies, garbage, greed ──► one of two owners ◄── trainers with a ledger
                by its channel, or by the public socket

Told are the processor time that a message costs the owner, how long trainers wait for an answer
meanwhile, and the memory that the server grows by.  At the end the judge of chaos speaks.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import select
import socket
import struct
import time
from collections.abc import Callable

import psutil
import zmq

from headrace_proto import limits
from headrace_proto.channel import Channel
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Attach,
    Ended,
    Get,
    Hello,
    Refused,
    Renew,
    Retarget,
    Save,
    Step,
    Welcome,
)
from tests.chaos.driver import Run
from tests.chaos.driver import Setup as Chaos
from tests.chaos.results import percentile
from tests.located import workers_at

from .frame import Report, Setup, private_bytes, tried, waits_ms

__all__ = ["Attacker", "run"]

_SECONDS = 10.0  # of each attack
_CALM_S = 3.0
_CELLS_PER_S = 2000  # more than honest trainers do
_PIECE = 1 << 17  # bytes of messages that are sent at a time
_LONGEST_MS = 1000.0
_MOST_SENT = 2 << 20  # bytes of a message of many frames
_GROWN_MB = 160.0
_MB = 2**20
_FALSE = 2**63 - 1  # a token that was never issued


def _lies(session: int) -> list[bytes]:
    """Yield messages of maximum length with tokens that were never issued."""
    saves = tuple(Save(_FALSE - n, 0, []) for n in range(5000))
    tokens = tuple(_FALSE - n for n in range(4000))
    told = Step(session, saves=saves), Step(session, tokens), Renew(session, 0, tokens, 1)
    return [FROM_TRAINER.encode(message) for message in told]


def _mixed(session: int) -> list[bytes]:
    greed = Step(session, gets=tuple(Get(1 + n, 0) for n in range(2500)))
    told = greed, Renew(session, 2**63), Retarget(session, 1, (0.5,) * 4000)
    return [FROM_TRAINER.encode(message) for message in told]


def _garbage(session: int) -> list[bytes]:
    chance = random.Random(session)
    return [chance.randbytes(chance.randrange(1, 2000)) for _ in range(50)]


def messages_of_frames(chance: random.Random, count: int, most: int) -> list[list[bytes]]:
    """Return messages of any number and size of frames, up to ``most`` bytes; none is valid."""
    made = []
    for _ in range(count):
        frames = chance.choice([1, 2, 3, 256, 257, 258, 4095, 4096, chance.randrange(1, 5000)])
        size = chance.choice([0, 1, 100, 1 << 16, 1 << 20])
        made.append([bytes(min(size, most // frames))] * frames)
    return made


def _frames(session: int) -> list[list[bytes]]:
    return messages_of_frames(random.Random(session), 20, _MOST_SENT)


#: Messages that an attacker repeats, by its session; and whether it reads the answers.
_ATTACKS: dict[str, tuple[Callable[[int], list[bytes] | list[list[bytes]]], bool]] = {
    "steps": (lambda session: [FROM_TRAINER.encode(Step(session))], True),
    "heartbeats": (lambda session: [FROM_TRAINER.encode(Renew(session, 0))], True),
    "lies": (_lies, True),
    "garbage": (_garbage, True),
    "frames": (_frames, True),
    "greed": (_mixed, False),
}


class Attacker:
    """One session at a worker, by a channel or (``far``) by the public socket.

    ``feed`` None: it does not greet, and has no session.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        far: bool,
        feed: str | None = "",
    ) -> None:
        self._far = context.socket(zmq.DEALER)
        self._far.linger, self._far.sndhwm = 0, 64
        self._far.connect(address)
        self.session = 0
        self._channel: socket.socket | None = None
        self._answers: Channel | None = None
        self._file = -1
        if feed is not None:
            self._greet(feed, far)

    def _greet(self, feed: str, far: bool) -> None:
        nonce = os.urandom(12)
        self._far.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "hostile", feed, nonce, owner=0)))
        welcome = None
        while not isinstance(welcome, Welcome):
            if not self._far.poll(20_000):
                raise RuntimeError("an attacker was not let in")
            welcome = FROM_SERVER.decode(self._far.recv_multipart()[0])
            if isinstance(welcome, Refused | Ended):
                return
        self.session = welcome.session
        if not far:
            self._file = os.open(welcome.session_file, os.O_RDONLY)
            fcntl.flock(self._file, fcntl.LOCK_SH)
            self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._channel.settimeout(2.0)
            self._channel.connect(welcome.channel)
            self._answers = Channel(self._channel)
            proof = os.pread(self._file, 16, 0)
            self._channel.sendall(_framed([FROM_TRAINER.encode(Attach(self.session, proof))]))

    def say(self, frames: list[bytes]) -> None:
        """Send one message; OSError where the server has ended the channel, or does not read."""
        if self._channel is not None:
            self._channel.sendall(_framed(frames))
        elif self._far.poll(2000, zmq.POLLOUT):
            self._far.send_multipart(frames)
        else:
            raise TimeoutError("the server does not read")

    def heard(self) -> list[list[bytes]]:
        """Return the messages that have come."""
        messages = []
        if self._answers is not None and select.select([self._channel], [], [], 0)[0]:
            messages += self._answers.take()
        while self._far.poll(0):
            messages.append(self._far.recv_multipart())
        return messages

    def attack(self, said: list[bytes] | list[list[bytes]], reads: bool, until: float) -> int:
        """Send messages until a time, or until the server hangs up; return their number."""
        sent = 0
        if self._channel is None:
            for message in itertools.cycle(said):
                if time.monotonic() > until:
                    return sent
                if not self._far.poll(100, zmq.POLLOUT):
                    continue
                self._far.send_multipart(message if isinstance(message, list) else [message])
                sent += 1
                while reads and self._far.poll(0):
                    self._far.recv_multipart()
        count, piece = _piece(said)
        with contextlib.suppress(ConnectionError, TimeoutError):  # thrown out, or not heard
            while time.monotonic() < until:
                self._channel.sendall(piece)
                sent += count
                while reads and select.select([self._channel], [], [], 0)[0]:
                    if not self._channel.recv(1 << 20):
                        return sent
        return sent

    def close(self) -> None:
        self._far.close()
        if self._channel is not None:
            self._channel.close()
            os.close(self._file)


def _framed(message: bytes | list[bytes]) -> bytes:
    frames = message if isinstance(message, list) else [message]
    head = struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))
    return head + b"".join(frames)


def _piece(said: list[bytes] | list[list[bytes]]) -> tuple[int, bytes]:
    """Return all messages, several times where they are short."""
    whole = b"".join(map(_framed, said))
    times = max(1, _PIECE // len(whole))
    return times * len(said), whole * times


def run(setup: Setup, report: Report) -> None:
    seconds = max(1.0, _SECONDS * setup.scale)
    ways = [(name, far) for name in _ATTACKS for far in (False, True)]
    cells = 1000 + int(_CELLS_PER_S * (len(ways) * seconds + _CALM_S))
    chaos = Chaos("segments", "", (), size=cells, proxied=0, far=0, lease_s=5.0)
    with Run(chaos, setup.scratch) as run, zmq.Context() as context:
        run.work(30)
        time.sleep(min(_CALM_S, seconds))
        _tell_waits(run, report, "before", 0.0)
        (server,) = run.servers
        address = workers_at(server.address)[0]
        owner = psutil.Process(server.children("worker")[0])
        before = private_bytes(psutil.Process(server.process.pid).children())
        grown = 0
        for name, far in ways:
            run.tend()
            what = f"{name} by {'a socket' if far else 'a channel'}"
            began, used = time.monotonic(), _used(owner)
            sent = 0
            while time.monotonic() < began + seconds:
                attacker = Attacker(context, address, far)
                said, reads = _ATTACKS[name]
                sent += attacker.attack(said(attacker.session), reads, began + seconds)
                report.count("attackers")
                now = private_bytes(psutil.Process(server.process.pid).children())
                grown = max(grown, now - before)
                attacker.close()
            took = _used(owner) - used
            report.count(f"messages: {what}", sent)
            report.figures[f"µs of the owner per message: {what}"] = round(
                1e6 * took / max(1, sent), 1
            )
            _tell_waits(run, report, what, began)
        report.at_most("memory grown MB", grown / _MB, _GROWN_MB, 1)
        tried(run, report)


def _tell_waits(run: Run, report: Report, what: str, since: float) -> None:
    """Return the waits for answers since a moment."""
    waits = waits_ms(run, since)
    if not waits:
        report.wrong(f"nobody was answered: {what}")
        return
    report.figures[f"answers, median ms: {what}"] = round(percentile(waits, 0.5), 1)
    report.at_most(f"answers, longest ms: {what}", max(waits), _LONGEST_MS, 1)


def _used(process: psutil.Process) -> float:
    told = process.cpu_times()
    return float(told.user + told.system)
