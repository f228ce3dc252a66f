"""Requests of trainers and of the supervisor that concern a whole feed.

    trainer     ─ Retarget, Resize, Drain ─► an order to each partition, stored ─► one answer
                ─ Stats ───────────────────► counts of all partitions
                ─ Snapshot ────────────────► supervisor, which asks all owners for copies
                ─ Flush ───────────────────► the partition of its lanes
    supervisor  ─ copy, inspect, close

Calls of partitions come between their steps, once all of them are open.  Where a feed has failed,
its trainers are told of that in place of an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_proto.channel import Frame
from headrace_proto.messages import Answered, Drain, Flush, Resize, Retarget, Snapshot, Stats

from ..process.config import MOST_FOUND
from ..process.statuses import added
from .feed_status import example_status
from .served_feed import Part, ServedFeed
from .sessions import Session

if TYPE_CHECKING:
    from .switchboard import Switchboard


@dataclass(slots=True, eq=False)
class _Orders:
    """An order to all partitions of a feed, until each has it and has stored it."""

    what: tuple[str, Any]
    answer: Callable[[list[list[int]], str], object]  # with the first changed batch of each
    left: list[Part]  # partitions that have not stored it
    since: list[list[int]] = field(default_factory=list)
    fault: str = ""
    late: str = ""  # the refusal of finished partitions: it counts where all are finished

    def stored(self, part: Part) -> None:
        """Note that a partition needs, or can do, no more; answer after the last one."""
        self.left.remove(part)
        if not self.left:
            late = "" if self.since else self.late
            self.answer(sorted(self.since), self.fault or late)


class FeedRequests:
    """The requests of all feeds of one owner."""

    def __init__(self, board: Switchboard) -> None:
        self.partitions, self.outbox = board.partitions, board.outbox
        self.pipe, self.clock = board.pipe, board.clock
        self.do, self.drain = board.do, board.drain
        #: By feed: calls that wait until all its partitions are open.
        self.calls: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self.handlers: dict[type, Callable[[Session, ServedFeed, Any, Sequence[Frame]], object]] = {
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
        self.outbox.hurry(session)
        self.do(self.partitions.stores.hurry)

    def _flush(
        self, session: Session, feed: ServedFeed, flush: Flush, frames: Sequence[Frame]
    ) -> None:
        """Keep the states of a trainer's lanes.  The last message of a flush is answered."""
        self.do(self._keep, session, feed, flush, frames[0] if frames else b"")

    def _keep(self, session: Session, feed: ServedFeed, flush: Flush, block: bytes) -> None:
        if not feed.serves:
            return
        answer = partial(self.outbox.answer_request, Answered(session.number, flush.request))
        if not flush.rows:
            answer()
            return
        batch = feed.desk.last_committed(session.nonce, flush.token)
        fault = feed.fault_of_flush(batch, flush.rows, flush.columns, block)
        if batch is None or fault[0]:
            failed = Answered(session.number, flush.request, None, *fault)
            self.outbox.answer_request(failed)
            return
        part = feed.partitions[batch.partition]
        part.run.keep(batch, list(flush.rows), flush.columns, block)
        self.partitions.stores.submit(part, at_once=True)
        if not flush.more:
            self.partitions.stores.then(part, answer)

    def _snapshot(
        self, session: Session, feed: ServedFeed, message: Snapshot, frames: Sequence[Frame]
    ) -> None:
        """Have the supervisor copy all stores; a trainer that asks again is answered again."""
        request = message.request
        if session.snapshot == request:
            if session.snapshotted is not None:
                self.outbox.tell(session, session.snapshotted)
            return
        session.snapshot, session.snapshotted = request, None
        failure = feed.failure
        if failure is None and not feed.durable:
            text = f"feed {feed.name!r}: a snapshot needs a server with a state_dir (--state-dir)"
            failure = "server", text
        if failure is not None:
            self.outbox.snapshotted(Answered(session.number, request, None, *failure))
        else:
            self.pipe.report(
                "snapshot",
                feed=feed.name,
                session=session.number,
                request=request,
                name=message.name,
                whole=message.whole,
            )

    def _drain(self, session: Session, feed: ServedFeed, message: Drain, frames: Any) -> None:
        """Close the input of a feed for a trainer."""
        drained = Answered(session.number, message.request)
        self.close(feed, message.cancel, partial(self.outbox.answer_request, drained))

    def _retarget(self, session: Session, feed: ServedFeed, message: Retarget, frames: Any) -> None:
        """Change the proportions of classes, or the weights of a mix, for a trainer."""
        kind = "weights" if message.mix else "target"
        self._change(session, feed, message.request, (kind, list(message.probs)))

    def _resize(self, session: Session, feed: ServedFeed, message: Resize, frames: Any) -> None:
        """Change the batch sizes for a trainer."""
        what = "batch_size", list(message.sizes)
        self._change(session, feed, message.request, what, lambda: feed.resized(message.sizes))

    def _change(
        self,
        session: Session,
        feed: ServedFeed,
        request: int,
        what: tuple[str, Any],
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """Change the batches of all partitions; answer with the first changed batch of each."""

        def answer(since: list[list[int]], fault: str) -> None:
            if not fault:
                done()
            code = "server" if fault else ""
            self.outbox.answer_request(Answered(session.number, request, since, code, fault))

        self._order(feed, what, answer)

    def _order(
        self, feed: ServedFeed, what: tuple[str, Any], answer: Callable[[list[list[int]], str], Any]
    ) -> None:
        """Order all partitions of a feed to make other batches."""
        parts = [*feed.partitions.values()]
        orders = _Orders(what, answer, parts.copy())
        self._call(feed, partial(self._steer, feed, orders, parts))

    def _steer(self, feed: ServedFeed, orders: _Orders, parts: Sequence[Part]) -> None:
        """Give an order to the partitions that can take one now, and to the others later."""
        if not feed.serves:
            return
        ordered, later, over = list[Part](), list[Part](), list[Part]()
        for part in parts:
            finished = part.run.finished
            if finished and orders.what[0] == "close":
                over.append(part)
                continue
            try:
                order = self.partitions.steer(part, orders.what)
            except ValueError as error:  # the numbers come from a trainer
                over.append(part)
                text = str(error)[:1000]
                if finished:
                    orders.late = text
                else:
                    orders.fault = orders.fault or text
                    orders.since.append([part.number, 0])
                continue
            if order is None:
                later.append(part)
            else:
                orders.since.append([part.number, order.since])
                ordered.append(part)
        self.drain(feed)  # the desk's log has the orders
        if later:
            self._call(feed, partial(self._steer, feed, orders, later))
        for part in over:
            orders.stored(part)
        for part in ordered:
            self.partitions.stores.then(part, partial(orders.stored, part))

    def _stats(self, session: Session, feed: ServedFeed, message: Stats, frames: Any) -> None:
        """Answer a trainer with the counts of ready, in-flight and committed batches."""

        def call() -> None:
            if feed.serves:
                runs = [part.run for part in feed.partitions.values()]
                counts = added([feed.sizes(), *(run.sizes() for run in runs)])
                due = [run.epoch_due() for run in runs]
                still = [epoch for epoch, more in due if more]
                least = min(still) if still else max(due)[0]
                counts |= {name: feed.counters.counts[name] for name in ("batches", "rows")}
                counts |= {"epoch": least, "open": not feed.over}
                self.outbox.answer_request(Answered(session.number, message.request, counts))

        self._call(feed, call)

    def close(self, feed: ServedFeed, cancel: bool, answer: Callable[[], object]) -> None:
        """Close a feed's input; answer when its partitions have stored that.

        Batches of an earlier life that trainers hold are claimed first, so that they still count.
        """

        def close() -> None:
            if feed.serves and feed.desk.recovering:
                self._call(feed, close)
            elif feed.serves and feed.close(cancel):
                self._order(feed, ("close", cancel), lambda since, fault: answer())
            else:
                answer()

        self._call(feed, close)

    # The supervisor

    def copy(self, feed: ServedFeed, request: int, directory: str) -> None:
        """Copy the stores of all partitions."""
        left, faults = {*feed.partitions}, list[str]()

        def copied(partition: int, fault: str) -> None:
            left.discard(partition)
            if fault:
                faults.append(f"partition {partition}: {fault}")
            if not left:
                answer()

        def answer() -> None:
            code, text = feed.failure or (("server", faults[0]) if faults else ("", ""))
            self.pipe.report("answer", request=request, code=code, text=text)

        def call() -> None:
            if feed.serves:
                self.partitions.copy(feed, directory, copied)
            else:
                answer()

        self._call(feed, call)

    def inspect(self, feed: ServedFeed, request: int, key: str) -> None:
        """Answer with the places of the examples of a key (hexadecimal), and their trainers."""

        def seek() -> None:
            now, sessions, wanted = self.clock(), self.outbox.sessions, bytes.fromhex(key)
            places = [
                example_status(feed, part.number, found, now, sessions)
                for part in (feed.partitions.values() if feed.serves else ())
                for found in part.run.seek(wanted)
            ][:MOST_FOUND]
            self.pipe.report("answer", request=request, found=places)

        self._call(feed, seek)

    # Partitions

    def _call(self, feed: ServedFeed, call: Callable[[], object]) -> None:
        self.calls[feed.name].append(call)

    def act(self, feed: ServedFeed) -> None:
        """Call the partitions of a feed once all are open."""
        if feed.opened:
            for call in self.calls.pop(feed.name, ()):
                self.do(call)
