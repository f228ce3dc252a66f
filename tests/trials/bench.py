"""The desks of an owner, without sockets: messages are put in by hand, partitions are played.

    say(identity, frames) ─► front or channel ─► Reception ─► desks ─► effects ─┬─► heard()
                                                               ▲               └─► partitions:
                                                               └─── events ◄─────── make, keep, free

Switchboard, Reception, Outbox, SessionTable and FrontChannel are those of a server.  Five feeds:
plain batches, classes, segments by arrival, lanes with states here, lanes with states at the
trainer; with or without a state directory, of one owner or the first of two.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import headrace_server as hs
from headrace_proto.clock import AwakeClock
from headrace_server.core.dispatch_effects import (
    Batch,
    Claim,
    Freed,
    PassOver,
    StoreCommit,
    StoreLanes,
    Want,
)
from headrace_server.core.partition_turns import Untaken
from headrace_server.process.channel_server import is_channel
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.relay_messages import (
    FROM_FRONT,
    FROM_OWNER,
    BlockPlace,
    Say,
    SendBlock,
    Sent,
    TrainerMessage,
)
from headrace_server.worker.desk import Desk
from headrace_server.worker.events import Opened
from headrace_server.worker.front_channel import FrontChannel
from headrace_server.worker.outbox import Outbox
from headrace_server.worker.sessions import SessionTable
from headrace_server.worker.switchboard import Switchboard

__all__ = ["COLUMNS", "FEEDS", "ROWS", "STATES", "Bench", "PlayedPartitions"]

ROWS = 4
STATES = [["chain", "int64", [2]]]
COLUMNS = [[0, ROWS * 16, [ROWS, 2]]]  # of the states of one batch
_SCHEMA = [["x", "int64", [-1]]]
_SEGMENT = "slab-0-0-0"
_SEGMENT_BYTES = 65_536
_AHEAD = 8


def _feeds() -> dict[str, hs.Pipeline]:
    rows = hs.from_examples([{"x": i, "label": i % 2} for i in range(8)])
    sequences = hs.from_examples([{"key": f"{i}", "x": [1, 2, 3]} for i in range(8)])

    def segments(**options: Any) -> hs.Pipeline:
        return sequences.batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=[],
            initial_states={"chain": hs.zeros((2,), "int64")},
            num_unroll=2,
            batch_size=ROWS,
            **options,
        )

    return {
        "plain": rows.batch(ROWS),
        "classes": rows.stratified_sample("label", [0.5, 0.5], batch_size=ROWS),
        "segments": segments(),
        "lanes": segments(order="lanes"),
        "kept": segments(order="lanes", state_placement="trainer"),
    }


FEEDS = _feeds()


class _Pipe:
    """A pipe to no supervisor."""

    def fileno(self) -> int:
        return -1

    def report(self, event: str, **values: Any) -> None:
        pass


class _Front:
    """The front: messages from and to trainers of other hosts."""

    ended = False

    def __init__(self, sent: list[tuple[bytes, bytes]]) -> None:
        self._inbox: deque[list[bytes]] = deque()
        self._sent = sent

    def fileno(self) -> int:
        return -1

    def say(self, connection: bytes, frames: Sequence[bytes]) -> None:
        self._inbox.append([FROM_FRONT.encode(TrainerMessage(connection, "")), *frames])

    def receive(self) -> list[list[bytes]]:
        heard, self._inbox = list(self._inbox), deque()
        return heard

    def send(self, frames: Sequence[bytes]) -> None:
        message, *rest = FROM_OWNER.decode(bytes(frames[0])), *frames[1:]
        if isinstance(message, (Say, SendBlock)):
            self._sent.append((message.connection, bytes(rest[0])))
        if isinstance(message, SendBlock):
            self._inbox.append([FROM_FRONT.encode(Sent(message.number))])


class _Channels:
    """Channels of trainers of this host."""

    def __init__(self, path: Path, sent: list[tuple[bytes, bytes]]) -> None:
        self.path = path
        self.connected: set[bytes] = set()
        self._inbox: deque[tuple[bytes, list[bytes]]] = deque()
        self._sent = sent

    def say(self, connection: bytes, frames: Sequence[bytes]) -> None:
        self._inbox.append((connection, list(frames)))

    def hear(self) -> Iterator[tuple[bytes, list[bytes]]]:
        while self._inbox:
            yield self._inbox.popleft()

    def tell(self, connection: bytes, frames: Sequence[bytes]) -> bool:
        if connection in self.connected:
            self._sent.append((connection, bytes(frames[0])))
        return connection in self.connected

    def send_payload(self, connection: bytes, frames: Sequence[bytes], most_bytes: int) -> bool:
        return self.tell(connection, frames)

    def drop(self, connection: bytes) -> None:
        self.connected.discard(connection)


class _Stores:
    """Stores that store every change at once."""

    def note(self, name: tuple[str, int], key: str, value: bytes) -> None:
        pass

    def settled(self, name: tuple[str, int]) -> bool:
        return True

    def hurry(self) -> None:
        pass


class PlayedPartitions:
    """Partitions that read no files and carry out calls at once."""

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.removed: list[str] = []
        self.stores, self.turns = _Stores(), self
        self._blocks: set[tuple[str, int, int]] = set()
        self._numbers: Counter[tuple[str, int]] = Counter()  # of batches that were made
        self._untaken: dict[str, Untaken] = {}  # by feed: batches that no trainer has taken
        self._open: dict[str, list[int]] = {}  # by feed: partitions that make batches

    def open(self, feed: str, partition: int) -> None:
        opened = Opened(partition, _SCHEMA, _properties(feed))
        self.events.append((feed, Desk.on_opened, opened))
        self._open.setdefault(feed, []).append(partition)

    def follow(self, feed: str, untaken: Untaken) -> None:
        self._untaken[feed] = untaken

    def free(self, feed: str, effect: Freed) -> None:
        batch = effect.batch
        if batch.body is not None:
            self._blocks.remove((feed, batch.partition, batch.number))  # once, and nothing else

    def save(self, feed: str, effect: StoreCommit) -> None:
        batch = effect.batch
        stored = [(batch.number, "", "")]
        self.events.append((feed, Desk.on_stored, batch.partition, stored))

    def used(self, feed: str, partition: int) -> None:
        pass

    def count(self) -> None:
        pass

    def flush(self, feed: str, effect: StoreLanes) -> None:
        flush = effect.payload[0]
        if not flush.more:
            self.events.append((feed, Desk.on_flushed, flush.session, flush.request))

    def want(self, feed: str, effect: Want) -> None:
        if effect.partition in self._open[feed]:
            for _ in range(min(effect.more, 64)):
                self._make(feed, effect.partition, {"stripe": effect.stripe})

    def leave(self, feed: str, effect: object) -> None:
        pass

    begin_epoch = deal = release = leave

    def store_rounds(self, name: tuple[str, int]) -> None:
        pass

    def pass_over(self, feed: str, effect: PassOver) -> None:
        self._blocks.remove((feed, effect.partition, effect.number))

    def seek(self, feed: str, key: bytes) -> list[list[Any]]:
        return []

    def claim(self, feed: str, effect: Claim) -> None:
        token = effect.place.token
        self.events.append((feed, Desk.on_judged, token, ("no", "done")[token % 2], 0))

    def close(self, feed: str, cancel: bool) -> None:
        for partition in self._open[feed]:
            self.events.append((feed, Desk.on_finished, partition, {}))
        self._open[feed] = []

    def abandon(self, feed: str) -> None:
        self._open[feed] = []

    def change(self, feed: str, change: Callable[[Any], int]) -> tuple[list[list[int]], str]:
        fault = ""
        try:
            change(self)
        except ValueError as error:
            fault = str(error)
        return [[0, 0]] if self._open[feed] else [], fault

    def set_target_probs(self, probs: Sequence[float]) -> int:
        if len(probs) != 2:
            raise ValueError("there are 2 classes")
        return 0

    def set_batch_sizes(self, sizes: Sequence[int]) -> int:
        if len(sizes) != 1:
            raise ValueError("there is one size")
        return 0

    def sizes(self, feed: str) -> list[tuple[dict[str, int], int, bool]]:
        return [({"ready": 0}, 0, bool(self._open[feed]))]

    def copy(self, feed: str, directory: str, then: Callable[[int, str], object]) -> None:
        for partition in self._open[feed]:
            then(partition, "")

    def fill(self) -> None:
        """Make batches of feeds without states ahead."""
        for feed, untaken in self._untaken.items():
            if "key" not in _properties(feed):
                for partition in self._open.get(feed, ())[:1]:
                    for _ in range(_AHEAD - untaken.count):
                        self._make(feed, partition, {})

    def _make(self, feed: str, partition: int, meta: dict[str, Any]) -> None:
        number = self._numbers[feed, partition]
        self._numbers[feed, partition] += 1
        self._blocks.add((feed, partition, number))
        body = BlockPlace(_SEGMENT, 4096 * (number % 16), [[0, 8 * ROWS, [ROWS]]], False)
        batch = Batch(partition, number, ROWS, body, meta, nbytes=4096)
        self.events.append((feed, Desk.on_made, batch))


class Bench:
    """One life of an owner; every call also carries out its consequences."""

    def __init__(self, directory: Path, durable: bool, owners: int = 1) -> None:
        directory.mkdir()
        (directory / _SEGMENT).write_bytes(bytes(_SEGMENT_BYTES))
        feeds = tuple(FeedConfig(n, p.declaration(), (), owners) for n, p in FEEDS.items())
        there = "there" if durable else None
        config = RunConfig(feeds, str(directory), (), workers=owners, state_directory=there)
        self._sent: list[tuple[bytes, bytes]] = []
        self._front = _Front(self._sent)
        self._channels = _Channels(directory / "trainers-0", self._sent)
        self._connected = 0
        self._files: dict[bytes, int] = {}  # that trainers of this host hold, by connection
        self._front_channel = FrontChannel(self._front)  # type: ignore[arg-type]
        self._sessions = SessionTable(directory, owner=0, owners=owners)
        channels: Any = self._channels
        self._outbox = Outbox(
            self._front_channel,
            directory,
            self._sessions,
            channels,
            config.slab_bytes,
            config.max_credits,
        )
        self._clock = AwakeClock()
        self.partitions = PlayedPartitions()
        parts: Any = self.partitions
        pipe: Any = _Pipe()
        self.switchboard = Switchboard(config, 0, parts, pipe, self._clock, self._outbox)
        self.switchboard.begin({"paused": False, "failed": {}, "all_opened": None, "before": {}})
        self.switchboard.all_are_back()
        for desk in self.switchboard.desks.values():
            for partition in desk.partitions:
                self.partitions.open(desk.name, partition)
        self._act()
        self.switchboard.obey({"order": "all_opened", "used": [], "touched": []})
        self._act()

    def say(self, identity: bytes, *messages: Sequence[bytes]) -> None:
        """Deliver messages of a trainer, and carry out their consequences."""
        for frames in messages:
            (self._channels if is_channel(identity) else self._front).say(identity, frames)
        if is_channel(identity):
            self.switchboard.reception.hear_channels()
        else:
            self._front_channel.hear()
            while self.switchboard.reception.hear_relayed(len(messages)):
                pass
        self._act()

    def come_by_channel(self, file: str) -> tuple[bytes, bytes]:
        """Connect a trainer of this host, by the name of its channel and the proof of its file."""
        self._connected += 1
        connection = b"\0channel-%d" % self._connected
        self._channels.connected.add(connection)
        self._files[connection] = fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return connection, os.pread(fd, 16, 0)

    def hang_up(self, connection: bytes) -> None:
        """Let a trainer of this host die."""
        self._channels.drop(connection)
        os.close(self._files.pop(connection))

    def tick(self, seconds: float) -> None:
        """Advance the clock."""
        self.switchboard.reception.tick(self._clock() + seconds)
        self._act()

    @property
    def refused(self) -> int:
        """The number of messages that were refused, or dropped after many refusals."""
        counts = self._front_channel.refusals.counts
        return counts["garbage"] + counts["muted"]

    def hears(self, identity: bytes) -> bool:
        """Return whether messages of a connection are read."""
        there = not is_channel(identity) or identity in self._channels.connected
        return there and identity not in self.switchboard.reception._limits.muted

    def heard(self) -> list[tuple[bytes, bytes]]:
        """Return messages sent since the last call: identity and header."""
        sent = list(self._sent)
        self._sent.clear()
        return sent

    def _act(self) -> None:
        while True:
            self.switchboard.act()
            self.switchboard.unstored_rounds.deliver_stored()
            self.partitions.fill()
            if not self.partitions.events:
                break
            while self.partitions.events:
                self.switchboard.hear(self.partitions.events.popleft())
        self._outbox.flush()

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._sessions.close()


def _properties(feed: str) -> dict[str, Any]:
    if feed in ("plain", "classes"):
        return {}
    placement = "trainer" if feed == "kept" else "server"
    return {"key": "key", "states": STATES, "placement": placement, "order": feed}
