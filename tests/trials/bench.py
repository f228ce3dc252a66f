"""A real Router without sockets: messages are put in and taken out by hand, workers are played.

    say(identity, frames) ─► Reception ─► desks ─► effects ─┬─► heard(): what trainers are sent
                                  ▲                         └─► workers: make, keep, answer at once
                                  └───────── their words ◄──────────┘

Five feeds: plain batches, classes, segments by arrival, lanes with states here, lanes with states
at the trainer; with or without a state directory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

import headrace_server as hs
from headrace_server.shell.config import FeedConfig, RunConfig
from headrace_server.shell.router import Router
from headrace_server.shell.worker_messages import (
    FROM_ROUTER,
    Assign,
    Claimed,
    Close,
    Finished,
    Flush,
    Flushed,
    Kept,
    Made,
    Opened,
    Retarget,
    Retargeted,
    Settled,
    Turn,
)

__all__ = ["COLUMNS", "FEEDS", "ROWS", "STATES", "Bench"]

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
    """To a supervisor that is not there."""

    def fileno(self) -> int:
        return -1

    def tell(self, event: str, **values: Any) -> None:
        pass


class _Sent:
    done = True


class _Frame:
    """The first frame after a connection's name; no real connection brought it."""

    def __init__(self, data: bytes, more: bool) -> None:
        self.bytes, self.more = data, more

    def get(self, option: int) -> int:
        return -1


class _Socket:
    """What a Gate and an Outbox use of the public socket."""

    linger = 0

    def __init__(self) -> None:
        self.inbox: deque[list[bytes]] = deque()
        self.outbox: list[list[bytes]] = []

    def getsockopt(self, option: int) -> int:
        return int(zmq.POLLIN) if self.inbox else 0

    def recv(self, flags: int, copy: bool = True) -> Any:
        frames = self.inbox[0]
        frame = frames.pop(0)
        more = bool(frames)
        if not more:
            self.inbox.popleft()
        return frame if copy else _Frame(frame, more)

    def recv_multipart(self, flags: int) -> list[bytes]:
        return self.inbox.popleft()

    def send_multipart(
        self, frames: Sequence[Any], flags: int, copy: bool = True, track: bool = False
    ) -> _Sent:
        self.outbox.append([bytes(frame) for frame in frames[:2]])
        return _Sent()


class _Partition:
    """What a worker would know of one partition."""

    def __init__(self) -> None:
        self.made = self.taken = 0
        self.by_stripe: dict[int, int] = {}
        self.finished = False


class _Workers:
    """All workers, in place of the channel to them."""

    def __init__(self) -> None:
        self.orders: deque[tuple[Any, list[bytes]]] = deque()

    def tell(self, identity: bytes, frames: Sequence[Any]) -> bool:
        header, *payload = frames
        self.orders.append((FROM_ROUTER.decode(bytes(header)), payload))
        return True

    def close(self) -> None:
        pass


class Bench:
    """One life of a server."""

    def __init__(self, directory: Path, durable: bool) -> None:
        directory.mkdir()
        (directory / _SEGMENT).write_bytes(bytes(_SEGMENT_BYTES))
        feeds = tuple(FeedConfig(n, p.declaration(), (), 1) for n, p in FEEDS.items())
        config = RunConfig(feeds, str(directory), (), state_directory="there" if durable else None)
        self.router = Router(config, _Pipe())  # type: ignore[arg-type]
        gate: Any = self.router._gate
        gate.close()
        connections: Any = self.router._connections
        connections.close()
        self.router._public.close()
        self.router._near.close()
        self.socket: Any = _Socket()
        self.reception = self.router._reception
        self.router._public = gate._socket = self.socket
        self.router._outbox._socket = self.socket
        connections._public = self.socket
        connections._monitor = _Socket()  # of which nothing comes
        self.workers: Any = _Workers()
        self.router._workers = self.workers
        self._partitions = {name: _Partition() for name in FEEDS}
        self.router._on_up(0, 0)
        self.act()

    def say(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """A trainer's message comes, and what it leads to is done."""
        self.socket.inbox.append([identity, *frames])
        self.reception.hear(1)
        self.act()

    @property
    def refused(self) -> int:
        """Messages that were refused, or dropped since many before them were."""
        counts = self.router._gate.refusals.counts
        return counts["garbage"] + counts["muted"]

    def hears(self, identity: bytes) -> bool:
        """Whether a connection is listened to."""
        return identity not in self.reception._conduct.muted

    def heard(self) -> list[list[bytes]]:
        """What was sent since: identity and header."""
        sent, self.socket.outbox = self.socket.outbox, []
        return list(sent)

    def act(self) -> None:
        self.router._act()
        while self.workers.orders:
            self._work(*self.workers.orders.popleft())
            if not self.workers.orders:
                self.router._act()

    def close(self) -> None:
        self.router._context.term()

    # The workers' part

    def _word(self, message: Any, *payload: bytes) -> None:
        self.router._on_worker(0, 0, message, list(payload))

    def _work(self, order: Any, payload: list[bytes]) -> None:
        if isinstance(order, Assign):
            self._word(Opened(order.feed, 0, _SCHEMA, _properties(order.feed)))
            self._fill(order.feed)
        elif isinstance(order, Settled):
            for feed, taken in order.taken:
                self._partitions[feed].taken = taken
                self._fill(feed)
        elif isinstance(order, Turn):
            self._turn(order)
        elif isinstance(order, Flush):
            if not order.more:
                self._word(Flushed(order.feed, order.session, order.request))
        elif isinstance(order, Retarget):
            fault = "" if len(order.probs) == 2 else "there are 2 classes"
            self._word(Retargeted(order.feed, 0, order.request, 0, fault))
        elif isinstance(order, Close):
            partition = self._partitions[order.feed]
            if not partition.finished and not order.abandon:
                partition.finished = True
                self._word(Finished(order.feed, 0, {}))

    def _fill(self, feed: str) -> None:
        """Batches of a feed without states are made ahead."""
        partition = self._partitions[feed]
        if "key" not in _properties(feed):
            while partition.made - partition.taken < _AHEAD and not partition.finished:
                self._make(feed, {})

    def _make(self, feed: str, meta: Mapping[str, Any]) -> None:
        partition = self._partitions[feed]
        number, partition.made = partition.made, partition.made + 1
        place = (_SEGMENT, 4096 * (number % 16), 4096)
        made = Made(feed, 0, number, ROWS, *place, [[0, 8 * ROWS, [ROWS]]], dict(meta), {})
        self._word(made, b"cursor")

    def _turn(self, turn: Turn) -> None:
        partition = self._partitions[turn.feed]
        if turn.saves:
            self._word(Kept(turn.feed, 0, [[number, "", ""] for number, *_ in turn.saves]))
        for token, number, _ in turn.claims:
            verdict = ("no", "done")[token % 2]
            self._word(Claimed(turn.feed, 0, token, verdict, number))
        for upto, stripe in turn.wants:
            made = partition.by_stripe.setdefault(stripe, 0)
            while partition.by_stripe[stripe] < min(upto, made + 64) and not partition.finished:
                partition.by_stripe[stripe] += 1
                self._make(turn.feed, {"stripe": stripe})


def _properties(feed: str) -> dict[str, Any]:
    if feed in ("plain", "classes"):
        return {}
    placement = "trainer" if feed == "kept" else "server"
    return {"key": "key", "states": STATES, "placement": placement, "order": feed}
