"""Requests of trainers and of the supervisor that concern a whole feed.

    trainer     ─ Retarget, Resize ──────┐
                  Drain, Stats ──────────┤
    supervisor  ─ copy, inspect, close ──┴─► all partitions ─► one answer
    trainer     ─ Snapshot ─► supervisor, which asks all owners for copies
    trainer     ─ Flush    ─► the partition of its lanes

The switchboard calls partitions after the effects that the desk decided before, and once all are
open.
Where a feed has failed, its trainers are told of that in place of an answer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace_proto.channel import Frame
from headrace_proto.clock import AwakeClock
from headrace_proto.messages import Answered, Drain, Flush, Resize, Retarget, Snapshot, Stats

from ..making.partition_commits import TOO_LATE
from ..making.partition_run import Run
from ..process.child import Pipe
from ..process.config import MOST_FOUND
from ..process.statuses import added
from .desk import Desk
from .feed_status import example_status
from .outbox import Outbox
from .partitions import Partitions
from .sessions import Session


@dataclass(eq=False)
class FeedRequests:
    """The requests of all feeds of one owner."""

    partitions: Partitions
    do: Callable[..., None]
    outbox: Outbox
    pipe: Pipe
    clock: AwakeClock

    def __post_init__(self) -> None:
        #: By feed: calls that wait until all its partitions are open.
        self.calls: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self.handlers: dict[type, Callable[[Session, Desk, Any, Sequence[Frame]], object]] = {
            Flush: self._flush,
            Snapshot: self._snapshot,
            Retarget: self._retarget,
            Resize: self._resize,
            Drain: self._drain,
            Stats: self._stats,
        }

    # Trainers

    def hurry(self, session: Session) -> None:
        """Store the commits of all trainers now, and answer this one, which waits for that."""
        self.outbox.hurry(session.number)
        self.do(self.partitions.stores.hurry)

    def _flush(self, session: Session, desk: Desk, flush: Flush, frames: Sequence[Frame]) -> None:
        """Store the states of a trainer's lanes."""
        code, text = "", ""
        if flush.rows:
            code, text = desk.on_flush(session.number, flush, frames[0] if frames else b"")
        if code or not (flush.rows or flush.more):
            self.outbox.tell(Answered(session.number, flush.request, None, code, text))

    def _snapshot(
        self, session: Session, desk: Desk, message: Snapshot, frames: Sequence[Frame]
    ) -> None:
        """Have the supervisor copy all stores; a trainer that asks again is answered again."""
        request = message.request
        if session.snapshot == request:
            if session.snapshotted is not None:
                self.outbox.send(session.identity, session.snapshotted)
            return
        session.snapshot, session.snapshotted = request, None
        failure = desk.failure
        if failure is None and not desk.durable:
            text = (
                f"feed {desk.name!r} has no state directory (state_dir, --state-dir): there is "
                "nothing to take a snapshot of"
            )
            failure = "server", text
        if failure is not None:
            self.outbox.snapshotted(Answered(session.number, request, None, *failure))
        else:
            self.pipe.report(
                "snapshot",
                feed=desk.name,
                session=session.number,
                request=request,
                name=message.name,
                whole=message.whole,
            )

    def _drain(self, session: Session, desk: Desk, message: Drain, frames: Sequence[Frame]) -> None:
        """Close the input of a feed for a trainer."""
        drained = Answered(session.number, message.request)
        self.close(desk, message.cancel, partial(self.outbox.tell, drained))

    def _retarget(self, session: Session, desk: Desk, message: Retarget, frames: Any) -> None:
        """Change the proportions of classes for a trainer."""
        probs = list(message.probs)
        self._change(session, desk, message.request, lambda run: run.set_target_probs(probs))

    def _resize(self, session: Session, desk: Desk, message: Resize, frames: Any) -> None:
        """Change the batch sizes for a trainer."""
        sizes = message.sizes
        self._change(
            session,
            desk,
            message.request,
            lambda run: run.set_batch_sizes(sizes),
            lambda: desk.resized(sizes),
        )

    def _change(
        self,
        session: Session,
        desk: Desk,
        request: int,
        change: Callable[[Run], int],
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """Change the batches of all partitions; answer with the first changed batch of each."""

        def call() -> None:
            since, fault = self.partitions.change(desk.name, change)
            if desk.failure is None:
                fault = fault[:1000] or ("" if since else TOO_LATE)
                code = "server" if fault else ""
                if not fault:
                    done()
                self.outbox.tell(Answered(session.number, request, sorted(since), code, fault))

        self._call(desk, call)

    def _stats(self, session: Session, desk: Desk, message: Stats, frames: Sequence[Frame]) -> None:
        """Answer a trainer with the counts of ready, in-flight and committed batches."""

        def call() -> None:
            if desk.failure is None:
                sizes, epochs, still = zip(*self.partitions.sizes(desk.name), strict=True)
                counts = added([desk.dispatcher.sizes(), *sizes])
                least = desk.dispatcher.current_epoch
                if least is None:
                    least = min(itertools.compress(epochs, still), default=max(epochs))
                counts |= desk.counters.committed()
                counts |= {"epoch": least, "open": not desk.over}
                self.outbox.tell(Answered(session.number, message.request, counts))

        self._call(desk, call)

    def close(self, desk: Desk, cancel: bool, answer: Callable[[], object]) -> None:
        """Close a feed's input; answer when its partitions have closed theirs.

        Batches of an earlier life that trainers hold are claimed first, so that they still count.
        """

        def close() -> None:
            if desk.failure is None and desk.dispatcher.expects_claims:
                self._call(desk, close)
                return
            if desk.close(cancel):
                self.partitions.close(desk.name, cancel)
            answer()

        self._call(desk, close)

    # The supervisor

    def copy(self, desk: Desk, request: int, directory: str) -> None:
        """Copy the stores of all partitions."""
        left, faults = {*desk.partitions}, list[str]()

        def copied(partition: int, fault: str) -> None:
            left.discard(partition)
            if fault:
                faults.append(f"partition {partition}: {fault}")
            if not left:
                answer()

        def answer() -> None:
            code, text = desk.failure or (("server", faults[0]) if faults else ("", ""))
            self.pipe.report("answer", request=request, code=code, text=text)

        def call() -> None:
            if desk.failure is None:
                self.partitions.copy(desk.name, directory, copied)
            else:
                answer()

        self._call(desk, call)

    def inspect(self, desk: Desk, request: int, key: str) -> None:
        """Answer with the places of the examples of a key (hexadecimal), and their trainers."""

        def seek() -> None:
            found = self.partitions.seek(desk.name, bytes.fromhex(key))[:MOST_FOUND]
            now = self.clock()
            places = [example_status(desk, example, now) for example in found]
            self.pipe.report("answer", request=request, found=places)

        self._call(desk, seek)

    # Partitions

    def _call(self, desk: Desk, call: Callable[[], object]) -> None:
        self.calls[desk.name].append(call)

    def act(self, desk: Desk) -> None:
        """Call the partitions of a feed once all are open."""
        if desk.opened:
            for call in self.calls.pop(desk.name, ()):
                self.do(call)
