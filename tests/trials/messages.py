"""Broken messages: none is more than refused, each is answered, counted, or does what it says.

    real messages of a trainer that is there ─► broken by chance, by structure or by bytes
        ─► decode (timed) ─► an owner's desks without sockets ─► answers, which must be messages

Now and then it is seen that a trainer who does nothing wrong is still served.  The client's session
is given broken messages of a server in the same way.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from headrace.leases import Received
from headrace.session import Session
from headrace_proto import limits
from headrace_proto.codec import Registry
from headrace_proto.errors import HeadraceError, ProtocolError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Attach,
    Bye,
    Deliver,
    Drain,
    Flush,
    Handed,
    Hello,
    Refused,
    Renew,
    Retarget,
    Save,
    Step,
    Unknown,
    Welcome,
)
from headrace_server.process.channel_server import is_channel
from tests.unit.proto.mutation import forms, mutant
from tests.unit.proto.test_fuzz_codec import MESSAGES

from .bench import COLUMNS, FEEDS, ROWS, Bench
from .frame import Report, Setup

__all__ = ["run"]

_MESSAGES = 10_000_000
_LIFE = 4000  # messages to one server
_RENEWED = 40  # messages after which what a trainer has is looked at anew
_TRAINERS = 2  # of each feed
_LONG = 0.01  # part of the messages that fill a header
_STRICT = 0.15  # part that is not broken
_P99_MS = 1.0
_BINS_S = np.geomspace(1e-6, 1.0, 600)


class _Trainer:
    """A trainer that means no harm, until its messages are broken."""

    def __init__(self, feed: str, number: int) -> None:
        self.feed, self.number = feed, number
        self.identity = self._far = b"%s-%d" % (feed.encode(), number)
        self.nonce = b"n" + self.identity
        self._connections = 0
        self.session = 0
        self.file = ""  # of its session
        self.tokens: list[int] = []
        self.got = 0

    @property
    def by_channel(self) -> bool:
        """Whether it has come by a channel."""
        return is_channel(self.identity)

    def connect_anew(self, bench: Bench) -> None:
        """Close the connection, and open another."""
        if self.by_channel:
            bench.hang_up(self.identity)
        self._connections += 1
        self.identity = b"%s/%d" % (self._far, self._connections)

    def come_by_channel(self, bench: Bench) -> None:
        """Go on by a channel."""
        connection, proof = bench.come_by_channel(self.file)
        bench.say(connection, [FROM_TRAINER.encode(Attach(self.session, proof, self.got))])
        self.identity = connection

    def hear(self, header: bytes) -> None:
        message = FROM_SERVER.decode(header)
        if isinstance(message, Welcome):
            self.session, self.file, self.got = message.session, message.session_file, 0
            self.tokens.clear()
        elif isinstance(message, Deliver) and message.session == self.session:
            for item in message.items:
                self.tokens.append(item.token)
                self.got = max(self.got, item.seq)
            del self.tokens[:-16]

    def hello(self) -> bytes:
        return FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", self.feed, self.nonce))

    def samples(self) -> list[bytes]:
        """Return messages that it could send now."""
        session, tokens = self.session, tuple(self.tokens[-4:])
        token = tokens[-1] if tokens else 1
        block, mine = (0, []) if self.feed == "kept" else (1, COLUMNS)
        place = Handed(token >> 32, 0, 3, ROWS, b"\1" * 12 * ROWS)
        held = (place, Handed(5, 0, 1, ROWS))
        told = [
            Hello(
                *limits.PROTOCOL,
                "t",
                self.feed,
                self.nonce,
                -1,
                0,
                self.got,
                tokens,
                "",
                held,
            ),
            Attach(session, b"\2" * 16),
            Step(session, self.got + 4, tokens[:1], tokens[:2], tokens[:1]),
            Step(session, self.got + 2, saves=(Save(token, block, mine),)),
            Step(session, self.got + 8),
            Renew(session, self.got + 3, self.got, tokens, tokens, self.got),
            Retarget(session, 3, (0.25, 0.75)),
            Flush(session, 4, token, (0, 2), [[0, 32, [2, 2]]]),
            Drain(session, 5),
            Bye(session),
        ]
        weights = [2, 1, 5, 8, 6, 5, 1, 3, 0, 1]
        return [
            header
            for message, n in zip(told, weights, strict=True)
            for _ in range(n)
            for header in forms(FROM_TRAINER, message)
        ]


def _long(chance: random.Random, session: int) -> bytes:
    """A message that fills a header."""
    many = tuple(chance.randrange(2**64) for _ in range(chance.randrange(1000, 4000)))
    message: Any = chance.choice(
        (
            Step(session, 5, many, many[:2000]),
            Renew(session, 5, 5, many[:2000], many[2000:]),
            Retarget(session, 1, tuple(float(n) for n in many)),
            Hello(
                *limits.PROTOCOL, "t", "plain", b"n", batches=(Handed(1, 0, 0, 4, bytes(48)),) * 900
            ),
        )
    )
    try:
        return FROM_TRAINER.encode(message)
    except ProtocolError:
        return FROM_TRAINER.encode(Step(session, 5, many[:1000]))


class _Faults(logging.Handler):
    """Notes errors that the owner logs about itself."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self.told.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


class _Times:
    """A histogram of the time of decoding."""

    def __init__(self) -> None:
        self.counts = np.zeros(len(_BINS_S) + 1, np.int64)

    def add(self, seconds: float) -> None:
        self.counts[np.searchsorted(_BINS_S, seconds)] += 1

    def p99_ms(self) -> float:
        if not self.counts.any():
            return 0.0
        place = int(np.searchsorted(self.counts.cumsum(), 0.99 * self.counts.sum()))
        return float(1000 * _BINS_S[min(place, len(_BINS_S) - 1)])


class _Fuzz:
    """The part of one process."""

    def __init__(self, seed: str, scratch: Path) -> None:
        self._chance = random.Random(seed)
        self._scratch = scratch
        self.counts: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self.all, self.long = _Times(), _Times()

    def life(self, number: int) -> None:
        """Some thousand messages to one server."""
        bench = Bench(self._scratch / f"{number}", number % 2 == 1, 1 + number // 2 % 2)
        faults = _Faults()
        logger = logging.getLogger("headrace.trainers")
        logger.addHandler(faults)
        logger.propagate, level = False, logger.level
        try:
            everyone = [_Trainer(feed, n) for feed in FEEDS for n in range(_TRAINERS)]
            for _ in range(_LIFE // _RENEWED):
                trainer = self._chance.choice(everyone)
                self._greet(bench, trainer)
                samples = trainer.samples()
                for _ in range(_RENEWED):
                    self._one(bench, trainer, samples)
            self._still_served(bench)
        except Exception as error:
            self.findings[f"the owner would have ended: {type(error).__name__}: {error}"] += 1
        finally:
            logger.removeHandler(faults)
            logger.propagate, logger.level = True, level
            bench.close()
            shutil.rmtree(self._scratch / f"{number}", ignore_errors=True)
        for text in faults.told:
            self.findings[text] += 1

    def _greet(self, bench: Bench, trainer: _Trainer) -> None:
        """Have a session, by a channel where it is one of every other trainer."""
        if not bench.hears(trainer.identity):
            trainer.connect_anew(bench)
            self.counts["connections silenced or ended"] += 1
        if not trainer.by_channel:
            bench.say(trainer.identity, [trainer.hello()])
            self._hear(bench, trainer)
            if trainer.number % 2 and trainer.session:
                trainer.come_by_channel(bench)
        step = Step(trainer.session, trainer.got + 6)
        bench.say(trainer.identity, [FROM_TRAINER.encode(step)])
        self._hear(bench, trainer)

    def _hear(self, bench: Bench, trainer: _Trainer) -> list[Any]:
        """Take all messages of the server; return those for this trainer."""
        mine = []
        for identity, header in bench.heard():
            message = FROM_SERVER.decode(header)
            if identity == trainer.identity:
                trainer.hear(header)
                mine.append(message)
        return mine

    def _one(self, bench: Bench, trainer: _Trainer, samples: list[bytes]) -> None:
        if self._chance.random() < _LONG:
            header = _long(self._chance, trainer.session)
            if self._chance.random() < 0.5:
                header = header[: self._chance.randrange(len(header))]
        elif self._chance.random() < _STRICT:
            header = self._chance.choice(samples)
        else:
            header = mutant(self._chance, samples)
        frames = [bytes(16 * ROWS)] if self._chance.random() < 0.8 else []
        if self._chance.random() < 0.1:
            frames = [self._chance.randbytes(self._chance.randrange(200))]
        message = self._decoded(FROM_TRAINER, header)
        refused = bench.refused
        bench.say(trainer.identity, [header, *frames])
        counted = bench.refused - refused
        answers = self._hear(bench, trainer)
        self.counts["messages"] += 1
        if counted:
            self.counts["refused"] += 1
        elif message is None:
            self.findings["a message that can not be decoded was not counted"] += 1
        elif any(isinstance(answer, Unknown) for answer in answers):
            self.counts["of no session"] += 1
        elif not bench.hears(trainer.identity):
            self.counts["that end their channel"] += 1
        elif isinstance(message, (Hello, Renew, Drain)) and not answers:
            self.findings[f"a {type(message).__name__} was not answered"] += 1
        else:
            self.counts["taken"] += 1

    def _decoded(self, registry: Registry, header: bytes) -> Any:
        began = time.thread_time()
        try:
            return registry.decode(header)
        except ProtocolError:
            return None
        except Exception as error:
            self.findings[f"decode: {type(error).__name__}: {error}"] += 1
            return None
        finally:
            took = time.thread_time() - began
            (self.long if len(header) > 16_384 else self.all).add(took)

    def _still_served(self, bench: Bench) -> None:
        """A newcomer gets a batch of every feed that was not drained."""
        for feed in FEEDS:
            desk = bench.switchboard.desks[feed]
            if desk.over or desk.closing is not None:
                self.counts["feeds drained"] += 1
                continue
            honest = _Trainer(feed, 99)
            self._greet(bench, honest)
            bench.say(honest.identity, [FROM_TRAINER.encode(Step(honest.session, 2))])
            self._hear(bench, honest)
            if not honest.tokens and feed != "plain":
                bench.tick(3600)  # others may hold all there is
                self._hear(bench, honest)
            self.counts["newcomers"] += 1
            if not honest.session:
                self.findings[f"a newcomer to {feed} was not let in"] += 1
            elif honest.tokens:
                self.counts["newcomers served"] += 1

    def client(self, messages: int) -> None:
        """Broken messages of a server to a trainer's session."""
        samples = [header for m in MESSAGES[FROM_SERVER] for header in forms(FROM_SERVER, m)]
        session = Session("feed", b"nonce", 2)
        for number in range(messages):
            if number % 50 == 0:
                session = Session("feed", b"nonce", 2)
                session.outgoing(0.0)
                opened = next(m for m in MESSAGES[FROM_SERVER] if isinstance(m, Welcome))
                session.receive(opened, [], 0.0)
            message = self._decoded(FROM_SERVER, mutant(self._chance, samples))
            self.counts["messages to a client"] += 1
            if message is None or isinstance(message, Refused):
                continue
            try:
                session.receive(message, [zmq.Frame(bytes(300))], 0.0)
                session.outgoing(0.0)
                while isinstance(session.take(), Received):
                    pass
            except (HeadraceError, ValueError):
                self.counts["that end it with an error of their own"] += 1
            except Exception as error:
                self.findings[f"client: {type(error).__name__}: {error}"] += 1


def _share(arguments: tuple[str, int]) -> tuple[Counter[str], Counter[str], Any, Any]:
    seed, messages = arguments
    with tempfile.TemporaryDirectory(prefix="headrace-trial-") as scratch:
        fuzz = _Fuzz(seed, Path(scratch))
        lives = max(1, messages * 4 // 5 // _LIFE)
        for number in range(lives):
            fuzz.life(number)
        fuzz.client(messages // 5)
    return fuzz.counts, fuzz.findings, fuzz.all.counts, fuzz.long.counts


def run(setup: Setup, report: Report) -> None:
    messages = setup.sized(_MESSAGES, 5000)
    processes = min(os.cpu_count() or 1, 2) if messages > 50_000 else 1
    parts = [(f"{setup.seed} {share}", messages // processes) for share in range(processes)]
    if processes == 1:
        done = [_share(parts[0])]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            done = pool.map(_share, parts)
    all_, long = _Times(), _Times()
    findings: Counter[str] = Counter()
    for counts, found, short_times, long_times in done:
        for what, n in counts.items():
            report.count(what, n)
        findings += found
        all_.counts += short_times
        long.counts += long_times
    for text, n in findings.most_common():
        report.wrong(f"{text} ({n} times)")
    report.at_most("decode p99 ms up to 16 kB", all_.p99_ms(), _P99_MS, 3)
    report.at_most("decode p99 ms of 16 to 64 kB", long.p99_ms(), _P99_MS, 3)
