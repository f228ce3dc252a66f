"""An owner of partitions as the front knows it: its lives, and its trainers.

    Began ─► alive ── Ready ──► answers greetings ── dies ──► its trainers greet the next life
               │
               └── the front holds greetings until it is ready

Each owner has its own sessions and memory, so the death of one touches no other.

An owner hands nothing out before the trainers of its earlier life are back, since they have batches
in hand.  With a state directory their number is stored there, for the next start of the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from headrace_proto.channel import Frame
from headrace_proto.messages import FROM_SERVER, Pulse, Unknown

from ..process.bounded_map import BoundedMap
from ..process.channel_server import ChannelServer
from ..process.descriptors import own
from ..process.relay_messages import FROM_FRONT, AllBack, Known, Sent, TrainerMessage
from ..process.worker_diary import DiaryReader, long_inside

#: Maximum memory of messages queued for a busy owner; beyond that, they wait in trainers' sockets.
_MOST_QUEUED = 64 << 20
#: Maximum number of connections that have greeted and have no session; the oldest is forgotten.
_MOST_GREETING = 10_000
#: Maximum size of a held greeting; a larger one comes again.
_MOST_HELD = 1 << 16
#: Maximum number of connections that are told at once why it does not answer.
_MOST_EXPLAINED = 256


#: Time in which trainers of an earlier server return: they send a Hello every second.
RETURN_S = 3.0
#: In the state directory: how many trainers are at work, by owner.
AT_WORK = "trainers"


class FrontOwner:
    """One owner, through all its lives."""

    def __init__(
        self,
        number: int,
        channels: ChannelServer,
        say: Callable[[bytes, bytes], bool],
        state: str | None = None,
    ) -> None:
        """``say`` sends a header to a connection; it returns False where that is gone.

        ``state``: the state directory.
        """
        self.number = number
        self.name: bytes | None = None  # of the connection of its current life
        self.life = 0
        self.ready = False  # whether it answers greetings
        self.sessions: dict[bytes, int] = {}  # by connection
        self.segments: dict[str, np.ndarray] = {}
        self.sending: list[tuple[Any, int]] = []  # trackers and numbers of blocks
        self._channels = channels
        self._say = say
        self._sent_keys: Known | None = None
        # connections: their descriptors
        self._greeting: BoundedMap[bytes, int] = BoundedMap(_MOST_GREETING)
        # greetings, by connection
        self._held: BoundedMap[bytes, tuple[int, str, list[Frame]]] = BoundedMap(_MOST_GREETING)
        self._connection_of: dict[int, bytes] = {}  # by session
        self._awaited: set[bytes] = set()  # connections with a session of the life before
        self._stored = None if state is None else Path(state, f"{AT_WORK}-{number}")
        self._at_work = self._expected = 0  # trainers, as stored; those of the earlier server
        if self._stored is not None:
            with contextlib.suppress(OSError, ValueError):
                self._at_work = self._expected = max(0, int(self._stored.read_text()))
        self._waits = False  # for some of both
        self._give_up_at = 0.0  # when the front waits for these no longer

    def __contains__(self, connection: bytes) -> bool:
        """Return whether a connection without a session has greeted this owner, or will."""
        return any(connection in of for of in (self._greeting, self._held, self._awaited))

    @property
    def load(self) -> int:
        """Number of trainers that it has or will have."""
        return len(self.sessions) + len(self._greeting) + len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether it is busy and has a long queue."""
        return self.name is not None and self._channels.unsent_memory(self.name) > _MOST_QUEUED

    def tell(self, message: object, frames: Iterable[Frame] = ()) -> None:
        """Send it a message, if it is alive: its next life learns all from trainers."""
        if self.name is not None:
            self._channels.tell(self.name, [FROM_FRONT.encode(message), *frames])

    def pass_on(self, connection: bytes, key: str, frames: Iterable[Frame]) -> None:
        """Pass on a trainer's message."""
        self.tell(TrainerMessage(connection, key), frames)

    # Lives

    def begin_life(self, life: int, name: bytes, known: Known) -> None:
        """Begin a life: the process with a connection of this name owns the partitions."""
        self.life, self.name = life, name
        self._sent_keys = known
        self.tell(known)  # before any greeting
        self._waits = bool(self._awaited or self._expected)
        if not self._waits:
            self.tell(AllBack())

    def end_life(self) -> list[int]:
        """End a life: have all its trainers greet again; return its sessions' numbers."""
        self.name, self.ready = None, False
        for connection, session in self.sessions.items():
            if self._say(connection, FROM_SERVER.encode(Unknown(session))):
                self._awaited.add(connection)
        ended = list(self._connection_of)
        self.sessions.clear()
        self._connection_of.clear()
        self._greeting.clear()
        self.segments.clear()
        self.sending.clear()
        return ended

    def open(self, now: float) -> None:
        """Pass on the held greetings: its feeds are open."""
        self.ready = True
        self._give_up_at = now + RETURN_S
        held, self._held = self._held, BoundedMap(_MOST_GREETING)
        for connection, (came_by, key, frames) in held.items():
            self.pass_greeting(connection, came_by, key, frames)

    def tick(self, now: float, known: Known) -> None:
        """Send it changed keys, and give up waiting for trainers that do not come back."""
        if self.ready and self._waits and now >= self._give_up_at:
            self._expected = 0
            self.see_back(*self._awaited)
        if known != self._sent_keys and self.name is not None:
            self._sent_keys = known
            self.tell(known)

    def sweep(self) -> None:
        """Tell it which blocks are sent."""
        still = []
        for tracker, number in self.sending:
            if tracker.done:
                self.tell(Sent(number))
            else:
                still.append((tracker, number))
        self.sending = still

    # Greetings and sessions

    def pass_greeting(self, connection: bytes, came_by: int, key: str, frames: list[Frame]) -> None:
        """Pass on a greeting; ``came_by``: the descriptor of its connection."""
        self._greeting[connection] = came_by
        self.pass_on(connection, key, frames)

    def hold(self, connection: bytes, came_by: int, key: str, frames: list[Frame]) -> None:
        """Hold a greeting until it is ready: its one frame, since others would take memory."""
        if sum(map(len, frames)) <= _MOST_HELD:
            self._held[connection] = came_by, key, frames

    def take_held(self) -> list[bytes]:
        """Return the connections of held greetings, and forget these."""
        held = list(self._held)
        self._held.clear()
        return held

    def greets(self, connection: bytes) -> bool:
        """Return whether the next answer to a connection is that to its greeting."""
        return connection in self._greeting

    def explain(self, directory: Path) -> None:
        """Tell the latest trainers whose greeting is unanswered which function the owner is in.

        A function that holds the interpreter's lock keeps its porter from answering.  The diary is
        in the run directory.
        """
        if not self._greeting:
            return
        try:
            with own():
                diary = DiaryReader(str(directory / f"diary-{self.number}"))
        except OSError:  # no descriptor or no memory is left for an explanation
            return
        entry = diary.read()
        if text := long_inside(self.number, entry.inside, entry.since):
            for connection in list(self._greeting)[-_MOST_EXPLAINED:]:
                self._say(connection, FROM_SERVER.encode(Pulse(0, 0, text)))

    def forget(self, connection: bytes) -> int:
        """End a greeting; return the descriptor of its connection, -1 if unknown."""
        return self._greeting.pop(connection, -1)

    def opened(self, connection: bytes, session: int) -> bytes:
        """Note the session that an answer to a greeting opens or resumes.

        Returns the connection by which it came before, if any.
        """
        before = self.left(session)
        self.sessions[connection] = session
        self._connection_of[session] = connection
        self._store_number()
        self.see_back(connection)
        return before

    def left(self, session: int) -> bytes:
        """Forget a session that has ended; return the connection that it had, if any."""
        connection = self._connection_of.pop(session, b"")
        if self.sessions.get(connection) == session:
            del self.sessions[connection]
            self._store_number()
        return connection

    def see_back(self, *connections: bytes) -> None:
        """Wait no longer for trainers of the life before: they are back, or given up."""
        if self._waits:
            self._awaited.difference_update(connections)
            if not self._awaited and len(self.sessions) >= self._expected:
                self._waits, self._expected = False, 0
                self._store_number()
                self.tell(AllBack())

    def _store_number(self) -> None:
        """Store how many trainers the next start of the server waits for."""
        number = max(len(self.sessions), self._expected)
        if self._stored is not None and number != self._at_work:
            self._at_work = number
            with contextlib.suppress(OSError):  # that start waits for others, or for fewer
                self._stored.write_text(str(number))
