"""All messages of the protocol, in any order and with any fields: other trainers notice nothing.

    attackers ── drawn, repeated and broken messages ──► one of two workers ◄── honest trainers
                 by a channel or the public socket, with a session or without

Attackers name the sessions and the tokens of honest trainers, too.  Of the feeds of honest trainers
they may do all but what any trainer may do to all others: commit batches, end or resize the feed.
Two further feeds are theirs alone, and there they may do that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import psutil
import zmq

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.errors import HeadraceError
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Attach,
    Bye,
    Drain,
    Flush,
    Get,
    Give,
    Hello,
    Renew,
    Resize,
    Retarget,
    Save,
    Snapshot,
    Stats,
    Step,
)
from tests.located import workers_at
from tests.unit.proto.mutation import UNSENDABLE, drawn, mutant

from .frame import Report, Setup, private_bytes
from .hostile import Attacker

__all__ = ["run"]

_MESSAGES = 200_000
_LIFE = 2000  # messages to one server: its feeds are drained before long
_BURST = 50  # messages of one connection
_PATIENCE_S = 60.0
_GROWN_MB = 64.0
_MB = 2**20
_ROWS, _UNROLL, _SIZE = 4, 2, 8
_STATES = [[0, 4 * _ROWS, [_ROWS]]]
_WEIGHTS = {Step: 40, Renew: 12, Hello: 6, Flush: 6, Attach: 3, Stats: 3, Bye: 1, Snapshot: 1}
#: Messages by which a trainer may change or end a feed for all others.
_MIGHTY = {Retarget: 3, Resize: 1, Drain: 0.1}


def _segments(examples: int, **more: Any) -> hs.Pipeline:
    data = [{"key": f"{k}", "x": [k] * (_UNROLL * (1 + k % 3))} for k in range(examples)]
    return hs.from_examples(data).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"steps": hs.zeros((), "int32")},
        num_unroll=_UNROLL,
        batch_size=_ROWS,
        **more,
    )


def _feeds(examples: int) -> dict[str, hs.Pipeline]:
    rows = hs.from_examples([{"x": k, "label": k % 2} for k in range(examples)])
    lanes = _segments(_SIZE, order="lanes", state_placement="trainer")
    return {
        "plain": rows.batch(_ROWS, allow_smaller_final_batch=True),
        "segments": _segments(examples),
        "lanes": lanes,
        "classes": rows.repeat().stratified_sample("label", [0.5, 0.5], _ROWS),
    }


class _Honest:
    """A trainer that checks what it gets."""

    def __init__(self, address: str, feed: str, examples: int) -> None:
        self._feed = headrace.connect(address, feed=feed, timeout=_PATIENCE_S)
        self._left = {
            (k, s) for k in range(examples) for s in range(1 + k % 3 if feed[0] == "s" else 1)
        }
        self.sound, self.over, self.token = True, False, 0

    def train(self) -> None:
        """Take a batch, and check it."""
        if self.over or (batch := next(self._feed, None)) is None:
            self.over = True
            return
        self.token = batch.token
        if isinstance(batch, headrace.SegmentBatch):
            steps = batch.state("steps")
            cells = [*zip(map(int, batch.original_key), batch.sequence.tolist(), strict=True)]
            self.sound &= steps.tolist() == [_UNROLL * s for _, s in cells]
            batch.save_state("steps", steps + _UNROLL)
        else:
            cells = [(x, 0) for x in batch["x"].tolist()]
        self.sound &= len({*cells} & self._left) == len(cells)
        self._left.difference_update(cells)

    def finish(self) -> bool:
        """Train to the end; return whether all was given once."""
        while not self.over:
            self.train()
        self._feed.close()
        return self.sound and not self._left


class _Drawer:
    """Draws messages for one connection."""

    def __init__(
        self, chance: random.Random, session: int, honest: Sequence[int], mighty: bool
    ) -> None:
        self._chance, self.session, self._mighty = chance, session, mighty
        self.tokens: list[int] = []  # of its own leases
        self._request = 1
        self._known = [session, *honest, *range(8)]
        self._weights = {**_WEIGHTS, **(_MIGHTY if mighty else {})}
        self._said: list[list[bytes]] = []

    def message(self) -> list[bytes]:
        """Return the frames of the next message."""
        chance = self._chance
        if self._said and chance.random() < 0.1:
            return chance.choice(self._said)
        kind = chance.choices([*self._weights], [*self._weights.values()])[0]
        try:
            headers = [
                FROM_TRAINER.encode(self._sensible(drawn(chance, kind, self._known, _STATES)))
            ]
        except UNSENDABLE:
            # it is too large, or its columns are none
            headers = [FROM_TRAINER.encode(Step(self.session))]
        header = mutant(chance, headers) if chance.random() < 0.1 else chance.choice(headers)
        sizes = [
            chance.choice((0, 16, 4 * _ROWS, 1 << 16))
            for _ in range(chance.choice((0, 0, 1, 1, 3)))
        ]
        self._said = [*self._said[-20:], [header, *map(chance.randbytes, sizes)]]
        return self._said[-1]

    def _sensible(self, message: Any) -> Any:
        """Most messages fit the session, for else they end at the first check."""
        chance, own = self._chance, tuple(self.tokens[-4:])
        if isinstance(message, Hello):
            names = "plain", "segments", "lanes", "classes"
            feed = chance.choice(names if self._mighty else names[:2])
            version = limits.PROTOCOL if chance.random() < 0.9 else message.version
            return dataclasses.replace(message, version=version, feed=feed, restart=False)
        fits = chance.random() < 0.9
        if not isinstance(message, Step):
            return dataclasses.replace(message, session=self.session) if fits else message
        if fits:
            message = message._replace(session=self.session)
        if chance.random() < 0.3:
            return message
        self._request += chance.randrange(-1, 4)
        gets = tuple(Get(self._request + n, 0, 0) for n in range(chance.randrange(3)))
        message = message._replace(gets=gets, returned=own[:1])
        if self._mighty and chance.random() < 0.5:
            save = Save(own[-1] if own else 1, chance.randrange(3), _STATES)
            message = message._replace(commits=own[1:2], saves=(save,))
        return message


def run(setup: Setup, report: Report) -> None:
    lives = setup.sized(_MESSAGES // _LIFE)
    for life in range(lives):
        _life(setup, setup.chance(f"messages {life}"), setup.scratch / f"{life}", report)


def _life(setup: Setup, chance: random.Random, scratch: Any, report: Report) -> None:
    bursts = _LIFE // _BURST
    examples = 3 * _ROWS * bursts
    options: dict[str, Any] = {"workers": 2, "partitions": 2, "lease_ttl_s": 2.0}
    with hs.run(_feeds(examples), **options, state_dir=scratch, durability="process") as server:
        honest = [_Honest(server.address, feed, examples) for feed in ("plain", "segments")]
        pids = server.pids
        processes = [psutil.Process(pid) for pid in pids.values()]
        before = private_bytes(processes)
        grown = 0
        with zmq.Context() as context:
            (worker, _) = workers_at(server.address, feed="plain")
            for burst in range(bursts):
                far, greets, mighty = (chance.random() < 0.5 for _ in range(3))
                feed = chance.choice(("lanes", "classes") if mighty else ("plain", "segments"))
                known = [trainer.token for trainer in honest]
                _attack(
                    context, worker, feed if greets or not far else None, far, chance, known, report
                )
                for trainer in honest:
                    trainer.train()
                if burst % 10 == 0:
                    grown = max(grown, private_bytes(processes) - before)
        if server.pids != pids:
            report.wrong(f"a process ended: {pids} became {server.pids}")
        refused = server.access()["refused"]
        if faults := refused.get("fault", 0):
            report.wrong(f"{faults} messages were not handled; the log has the errors")
        for what, count in refused.items():
            report.count(f"refused: {what}", count)
        for trainer, feed in zip(honest, ("plain", "segments"), strict=True):
            if not trainer.finish():
                report.wrong(f"the honest trainer of {feed} did not get each cell once, in order")
        report.at_most("memory grown MB", grown / _MB, _GROWN_MB, 1)


def _attack(
    context: zmq.Context[zmq.Socket[bytes]],
    worker: str,
    feed: str | None,
    far: bool,
    chance: random.Random,
    honest: list[int],
    report: Report,
) -> None:
    """Send a burst of messages by a new connection; without a feed it does not greet."""
    mighty = feed in ("lanes", "classes")
    attacker = Attacker(context, worker, far, feed)
    drawer = _Drawer(chance, attacker.session, honest, mighty)
    with contextlib.suppress(ConnectionError, TimeoutError):  # thrown out
        for _ in range(_BURST):
            attacker.say(drawer.message())
            report.count("messages")
            for frames in attacker.heard():
                with contextlib.suppress(HeadraceError):
                    message = FROM_SERVER.decode(frames[0])
                    if isinstance(message, Give) and message.session == attacker.session:
                        drawer.tokens += [item.token for item in message.items]
    attacker.close()
