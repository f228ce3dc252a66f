"""The locator: the process with the server's public address, which tells trainers of the workers.

    trainer ── Hello ─► locator ─► ServedShare   which share of the feed, and where each worker is
                                ─► Pulse         not yet: a worker is being started
                                ─► Refused       no such feed, another version, a failed server
    producer ── Produce ─► locator ─► the same, of a feed that reads the log
    operator ─ Command ─► locator ─► the supervisor, whose answer goes back: commands.py

It hands nothing out and runs no user code, so it answers at once while workers start, die, open
sources or compute.  A trainer asks it when it connects, and again when a worker is away.

It is a process of its own since strangers can reach it: their connections, and messages that fill
its memory, are no affair of the program that called ``hs.run``.
"""

from __future__ import annotations

import logging
import select
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from headrace_proto.channel import Frame
from headrace_proto.clock import AwakeClock
from headrace_proto.errors import HeadraceError, NotAllowed, ProtocolError, code_of
from headrace_proto.log_messages import Produce
from headrace_proto.messages import (
    FROM_SERVER,
    Answered,
    Command,
    Hello,
    Pulse,
    Refused,
    ServedShare,
)

from ..journal.feed_directory import described
from ..net.bounded_map import BoundedMap
from ..net.keyring import KeyRing
from ..net.public_socket import PublicSocket
from ..net.refusals import (
    REVOKED,
    RateLimits,
    check_version,
    fault_of_message,
    feed_named,
    log_named,
)
from ..net.sockets import EXPECTED, open_files_limit
from ..pipeline.declaration import digest
from ..process.child import Message, Pipe, perform
from ..process.config import FeedConfig, RunConfig
from ..process.log_lines import log_to_stderr
from ..process.worker_diary import DiaryReader, long_inside

logger = logging.getLogger("headrace.locator")

_TICK_S = 0.1
#: Maximum number of messages before events and orders get their turn.
_BURST = 256
#: Maximum number of connections, but no more than half of the open files: beyond that the oldest
#: end.
_CONNECTIONS = 1792
#: Maximum number of greetings that wait for the start of a worker; the oldest is forgotten.
_MOST_HELD = 10_000
#: Maximum number of commands that wait for the supervisor; the oldest gets no answer.
_MOST_COMMANDS = 1000
#: Time in which trainers of workers that ended without a word learn that the server has stopped.
_LAST_WORDS_S = 1.5


def digests(feed: FeedConfig) -> dict[str, str]:
    """Return a digest of each part of a feed that all its servers must have alike.

    Files count by name and size, since they may lie elsewhere on each host and be written there at
    another time.
    """
    plain = described(feed)
    pipeline = plain["pipeline"]
    source = {name: value for name, value in pipeline["source"].items() if name != "paths"}
    files = [(str(path).rsplit("/", 1)[-1], size) for path, size, _ in plain["files"]]
    parts = {**pipeline, "source": source, "files": files}
    return {name: digest(part) for name, part in parts.items()}


class Locator:
    """One public address.

    A trainer compares the answers of all servers of a feed: they must have the same declaration.
    """

    def __init__(self, config: RunConfig, pipe: Pipe, ring: KeyRing | None) -> None:
        self._config = config
        self._pipe = pipe
        self._feeds = {feed.name: feed for feed in config.feeds}
        self._digests: dict[str, dict[str, str]] = {}  # by feed, once a trainer has asked
        #: By worker: by the port or path of the server, where the worker is.
        self._places: dict[int, dict[str, str]] = {}
        self._diaries: dict[int, DiaryReader] = {}
        self._dead: set[int] = set()  # the next worker has the same place, if it can
        self._clock = AwakeClock(2 * _TICK_S)
        self._socket = PublicSocket(ring, min(_CONNECTIONS, open_files_limit() // 2))
        self._limits = RateLimits(
            most=config.max_messages_per_s,
            refusals=self._socket.refusals,
            handle=self._on_message,
            who=lambda connection: "a trainer",
            send=self._send,
            end=lambda connection: None,
        )
        #: Greetings that wait for the start of a worker, and where they came to.
        self._held: BoundedMap[bytes, tuple[Hello | Produce, str]] = BoundedMap(_MOST_HELD)
        #: Commands that the supervisor carries out: the connection and the request of each.
        self._commands: BoundedMap[int, tuple[bytes, int]] = BoundedMap(_MOST_COMMANDS)
        self._last_command = 0
        self._failure: tuple[str, str] | None = None
        self._next_tick = 0.0
        self._stops_at: float | None = None
        self._orders: dict[str, Callable[..., None]] = {
            "located": self._locate,
            "worker_died": lambda worker: self._dead.add(worker),
            "fail": self._fail,
            "stats": self._answer_stats,
            "commanded": self._answer_command,
            "stop": self._stop,
        }

    def bind(self) -> list[str]:
        """Bind the public socket; return the addresses for trainers."""
        return self._socket.bind(self._config.binds)

    def run(self) -> None:
        """Serve until an order to stop."""
        socket, pipe = self._socket, self._pipe
        poller = select.epoll()
        for number in (pipe.fileno(), *socket.filenos()):
            poller.register(number, select.EPOLLIN)
        while self._stops_at is None or self._clock() < self._stops_at:
            at_once = socket.stirred and socket.look()
            ready = {number for number, _ in poller.poll(0.0 if at_once else _TICK_S)}
            if pipe.fileno() in ready:
                for order in pipe.read_orders():
                    perform(self._orders, order)
            now = self._clock()
            socket.update(now)
            if now >= self._next_tick:  # it lets new keys in before their greetings come
                self._next_tick = now + _TICK_S
                socket.tick(now)
                socket.sweep()
            self._receive()

    def close(self) -> None:
        """Close all sockets."""
        self._socket.close()

    # Trainers

    def _receive(self) -> None:
        for _ in range(_BURST):
            if not self._socket.waits:
                return
            try:
                key, connection, frames = self._socket.receive()
                self._limits.take(connection, frames, key, self._clock())
            except Exception as error:  # no message ends the process
                self._socket.refuse(error, self._clock())

    def _on_message(
        self,
        connection: bytes,
        message: object,
        frames: Sequence[Frame],
        key: str | None,
        now: float,
    ) -> None:
        if frames:
            raise ProtocolError(f"a greeting of {1 + len(frames)} frames came")
        if isinstance(message, Hello | Produce):
            self._answer(connection, message, self._socket.last_came_to)
        elif isinstance(message, Command):
            self._on_command(connection, message, key)

    def _answer(self, connection: bytes, hello: Hello | Produce, reached: str) -> None:
        if self._failure is not None:
            self._send(connection, Refused(*self._failure))
            return
        try:
            answer = self._share(hello, reached)
        except HeadraceError as error:
            self._send(connection, Refused(code_of(error), str(error)))
            return
        except Exception as fault:
            said = fault_of_message(fault)
            self._limits.silence("fault", connection, said, self._clock(), fault)
            return
        if isinstance(answer, Pulse):
            self._held[connection] = hello, reached
        self._send(connection, answer)

    def _share(self, hello: Hello | Produce, reached: str) -> ServedShare | Pulse:
        """Answer a greeting; ``reached``: the port or path of the server that it came to.

        HeadraceError: it can not be answered.
        """
        check_version(hello)
        if isinstance(hello, Produce):
            readers = {log: feed.name for feed in self._feeds.values() for log in feed.logs}
            name = readers[log_named(hello.log, readers)]
        else:
            name = feed_named(hello.feed, self._feeds)
        feed = self._feeds[name]
        owners = range(self._config.owners_of(feed))
        if any(owner not in self._places for owner in owners):
            return Pulse(0, 0, "the worker is being started")
        if name not in self._digests:
            self._digests[name] = digests(feed)
        found = [self._places[owner] for owner in owners]
        return ServedShare(
            feed=name,
            share=feed.share[0],
            shares=feed.share[1],
            partitions=feed.partitions,
            server=Path(self._config.directory).name,
            declaration=self._digests[name],
            workers=tuple(of.get(reached) or next(iter(of.values())) for of in found),
            waiting="; ".join(filter(None, map(self._away, owners)))[:1000],
        )

    def _away(self, worker: int) -> str:
        """Return why a worker may not answer, in words; "" where it should."""
        if worker in self._dead:
            return "the worker is being started"
        try:
            if worker not in self._diaries:
                diary = Path(self._config.directory, f"diary-{worker}")
                self._diaries[worker] = DiaryReader(str(diary))
        except OSError:  # no descriptor or no memory is left for an explanation
            return ""
        return long_inside(worker, self._diaries[worker].read())

    def _on_command(self, connection: bytes, command: Command, key: str | None) -> None:
        """Pass a command to the supervisor: any peer that may train may command."""
        try:
            check_version(command)
            if self._socket.name_of(key or "") is None:
                raise NotAllowed(REVOKED)
        except HeadraceError as error:
            self._send(connection, Refused(code_of(error), str(error)))
            return
        number = self._last_command = self._last_command + 1
        self._commands[number] = connection, command.request
        plain = {**asdict(command), "key": command.key.hex(), "number": number}
        for field in ("version", "library", "request"):
            del plain[field]
        self._pipe.report("command", **plain)

    def _answer_command(self, number: int, content: str, code: str, text: str) -> None:
        asked = self._commands.pop(number, None)
        if asked is not None:
            connection, request = asked
            header = FROM_SERVER.encode(Answered(0, request, code=code, text=text))
            block = memoryview(content.encode())
            self._socket.send_block(connection, header, block, lambda: None)

    def _send(self, connection: bytes, message: object) -> bool:
        return self._socket.send(connection, FROM_SERVER.encode(message))

    # The supervisor

    def _locate(self, worker: int, places: Mapping[str, str]) -> None:
        self._places[worker] = dict(places)
        self._dead.discard(worker)
        self._answer_held()

    def _fail(self, code: str, text: str) -> None:
        self._failure = code, text
        self._answer_held()

    def _answer_held(self) -> None:
        held, self._held = self._held, BoundedMap(_MOST_HELD)
        for connection, (hello, reached) in held.items():
            self._answer(connection, hello, reached)

    def _answer_stats(self, request: int) -> None:
        """Describe the keys, and what was refused; workers describe the trainers."""
        access = {**self._socket.keys, "refused": dict(self._socket.refusals.counts)}
        self._pipe.report("answer", request=request, access=access)

    def _stop(self, unended: list[int]) -> None:
        """End; first tell trainers of workers (``unended``) that could not tell them themselves.

        With a state directory another server goes on, so no trainer is refused.
        """
        final = self._config.state_directory is None
        if final:
            self._failure = "lost", "the server was stopped"
        self._stops_at = self._clock() + (_LAST_WORDS_S if final and unended else 0.0)


def serve(plain: Message, pipe: Pipe) -> None:
    """Run the locator of a server, until an order to stop.

    It reads its keys before the server begins.  Where they can not be used, it reports why, and
    ends.
    """
    keys = plain["keys"]
    try:
        ring = None if keys is None else KeyRing(keys)
    except OSError as error:
        path = error.filename and str(error.filename)
        pipe.report("unusable", text=error.strerror, number=error.errno, path=path)
        return
    except ValueError as error:
        pipe.report("unusable", text=str(error))
        return
    if ring is not None and not ring.names:
        logger.warning("keys=%r: no trainer is let in yet: trainers/ has no keys", keys)
    pipe.report("keys_read")
    locator = Locator(pipe.read_config(), pipe, ring)
    try:
        pipe.report("ready", addresses=locator.bind())
        locator.run()
    finally:
        locator.close()


def main() -> None:
    """Run the process."""
    pipe = Pipe()
    plain = pipe.read_config()
    log_to_stderr(plain["log_level"])
    try:
        serve(plain, pipe)
    except BaseException as error:
        pipe.report("dying", text=f"{error}")
        if not isinstance(error, EXPECTED):
            traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main()
