"""One feed at one owner: its partitions, its desk once all of them are open, and facts about it.

    partitions ─► on_opened(), status ─┐
    trainers ─── commits, flushes ─────┼─► ServedFeed ─► properties, usage, status
    desk ◄─ start(), when all are open ┘

The desk decides who gets which batch.  Nothing here reads payload.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace_proto.channel import Frame
from headrace_proto.checks import Columns
from headrace_proto.errors import ProtocolError, shown
from headrace_proto.schema import Field, schema_to_wire

from ..journal.journal import Journal
from ..leasing.desk import Desk
from ..leasing.words import Batch, Port
from ..partition.partition_run import Made, Payload, Run
from ..process.config import FeedConfig, RunConfig
from ..shaping.stored_state import Saved
from ..watch.statuses import added
from .resuming import Resuming
from .sessions import Session, Tally
from .state_blocks import LANES_LOST, StateBlocks

logger = logging.getLogger("headrace.trainers")

#: Time for which a life that begins waits for the trainers of the one before.
GRACE_S = 3.0
#: Time in which trainers of an earlier server return: they send a Hello every second.
_RETURN_S = 3.0
#: Run, rank and birth of a trainer, as the desk logs and loads them.
Known = tuple[int, int, int]


#: Maximum length of an error's text, which must fit a message's header in any script.
_LONGEST_TEXT = 8000


@dataclass(slots=True, eq=False)
class ServedPartition:
    """One partition of a feed at this owner.  It has a run and a journal once it is open."""

    feed: ServedFeed
    number: int
    run: Run = field(init=False)
    journal: Journal = field(init=False)
    saved: Saved | None = None  # what the journal had, until the run has it
    open: bool = False
    done: bool = False  # whether it has made all its batches
    waits: str = ""  # what its next batch lacks
    made_at: float = 0.0  # when it made its last batch
    used: tuple[int, int] = (0, 0)  # number of commits and of their rows, in all lives
    #: Chunks that an earlier process read, with examples in flight, for which they are read again.
    earlier: set[int] = field(default_factory=set)
    tokens: set[int] = field(default_factory=set)  # of commits of earlier lives
    noted: dict[str, bytes] = field(default_factory=dict)  # by earlier lives, see ``Stores.note``
    status: dict[str, Any] = field(default_factory=dict)  # its part of a ``FeedStatus``


class Counters:
    """Counters of one feed."""

    def __init__(self) -> None:
        self.counts = {
            "batches": 0,
            "rows": 0,
            "redelivered": 0,
            "stale": 0,
            "expired": 0,
        }  # of the desk
        self.made = Made()
        self._left = Tally().totals  # of sessions that have left
        self.before = 0  # batches that earlier lives have stored

    def go_on(self, batches: int, rows: int) -> None:
        """Continue the counts of a partition's stored commits."""
        self.before += batches
        self.counts["batches"] += batches
        self.counts["rows"] += rows

    def on_left(self, tally: Tally) -> None:
        """Keep the counts of a session that has left."""
        self._left = added([self._left, tally.totals])

    def totals(self, present: Iterable[Tally]) -> dict[str, Any]:
        """Return all counters, with those of ``present`` sessions; keys as in ``Server.stats``."""
        sent = added([self._left, *(tally.totals for tally in present)])
        made = {"batches": self.made.batches, "rows": self.made.rows, "bytes": self.made.bytes}
        return {**self.counts, "made": made, **sent}


class ServedFeed:
    """One feed at one owner."""

    def __init__(
        self, config: FeedConfig, run: RunConfig, owner: int, report: Callable[..., None]
    ) -> None:
        """``report`` sends the supervisor a report: its kind, and values by name."""
        self.name, self.owner = config.name, owner
        self._report = partial(report, feed=config.name)
        self.partitions = {n: ServedPartition(self, n) for n in run.partitions_of(config, owner)}
        self.owners = run.owners_of(config)
        self.of_feed = config.partitions  # partitions at all owners
        self.share = config.share
        self.of_share = "{}/{}".format(*config.share)
        self.shared = self.owners > 1 or config.share[1] > 1
        # It distinguishes tokens of this process from those of an earlier one.
        self.term = run.term
        self.durable = run.state_directory is not None  # whether its state outlives the server
        self.segmented, self.order = config.segmented, config.order
        self.stateful = config.segmented and config.states != "none"  # committed by states
        self.states_stay = config.states == "trainer"  # whether states stay with the trainers
        self.desk: Desk  # which there is once all partitions are open
        self.opened = False  # whether all partitions are open (or done), or the feed has failed
        self.serves = False  # whether its desk is open, and the feed has not failed
        self.present: dict[bytes, Session] = {}  # the sessions of its trainers, by nonce
        self.known: dict[bytes, Known] = {}  # the trainers that have a session at the desk …
        self.births: list[Known] = []  # … and, of the life before, of each rank the last …
        self.runs: dict[int, None] = {}  # … and the runs of ranks, the present one last
        self.schema: list[list[object]] | None = None
        self.properties: dict[str, Any] = {}  # sent to trainers beside the schema
        self.states = StateBlocks([], run.max_state_bytes)
        self.failure: tuple[str, str] | None = None
        self.wakes: Callable[[], None] = lambda: None  # called when it may have ended
        self.closing: bool | None = None  # None: the input is open; else whether to drop rows
        self.resuming = Resuming(config, self.durable, run.starts, self.owners == 1, self._report)
        self.counters = Counters()
        #: By nonce: until when a trainer whose connection is lost may come back.
        self._away: dict[bytes, float] = {}
        self._ended_at: float | None = None
        self._bad: dict[str, int] = {}  # bad examples, as the supervisor knows
        self._shape = config.declaration.shape.options
        self._policy = config.declaration.policy
        self._run = run
        self._config = config

    @property
    def over(self) -> bool:
        return self.desk.ended if self.serves else self.failure is not None

    # Partitions

    def on_opened(self, part: ServedPartition) -> None:
        """Note that a partition is open, and what its batches are like."""
        run = part.run
        self.schema = self.schema or schema_to_wire(run.schema)
        self.properties = {**self.properties, **run.properties}
        if self.durable:
            self.properties["epoch"] = self.term  # that is its name on the wire
        self.properties["generation"] = self.resuming.generation
        self._add_epochs()
        states = run.properties.get("states", ())
        # Flushed states of any size are stored, as the server has promised.
        most = sys.maxsize if self.states_stay else self._run.max_state_bytes
        fields = [Field(dtype, tuple(dims)) for _, dtype, dims in states]
        rows = 0 if self.states_stay else self._shape.get("batch_size", 0)
        self.states = StateBlocks(fields, most, rows)
        part.open, run.judge = True, self.fault_of_states
        self.counters.go_on(*part.used)
        if part.used[0] and not self.durable:  # batches of an earlier owner of this server
            self.resuming.touched()

    def start(self, port: Port, known: Mapping[bytes, Known], ahead: int, now: float) -> None:
        """Open the desk: all partitions are open.  ``known``: the trainers that it waits for."""
        self.known, parts = dict(known), self.partitions.values()
        self.desk = Desk(
            {part.number: part.run for part in parts},
            self.term,
            port,
            known=self.known,
            births=self.births,
            runs=self.runs,
            tokens=set().union(*(part.tokens for part in parts)),
            now=now,
            ttl=self._run.lease_ttl_s,
            grace=GRACE_S,
            ahead=ahead,
            max_open=self._run.max_credits,
        )
        for name, count in self.counters.counts.items():
            self.desk.counts[name] += count
        self.counters.counts = self.desk.counts
        self.opened = self.serves = True
        self.resuming.opened(self.used)

    @property
    def used(self) -> bool:
        """Whether a batch of its partitions is committed, in whatever life."""
        return any(part.used[0] for part in self.partitions.values())

    def _add_epochs(self) -> None:
        """Add the epochs of the feed to its properties."""
        order = self._config.declaration.order
        if order.epochs != 1:
            self.properties["epochs"] = order.epochs
        if not order.across_batches:
            self.properties["across_batches"] = False
        if self._config.declaration.source.kind == "mix":
            self.properties["sources"] = self._config.declaration.source.options["names"]

    def examples(self) -> dict[str, Any]:
        """Return how many examples are done here, over all epochs, and of how many.

        It is empty where nobody knows how many there are.  An example is done when its rows are
        committed or dropped; those of batches that are not committed are taken for average ones.
        """
        runs = [part.run for part in self.partitions.values()]
        shares, epochs = [run.intake.share for run in runs], self._config.declaration.order.epochs
        if epochs is None or None in shares:
            return {}
        used, pending, rows = 0.0, 0, self.counters.counts["rows"]
        for run in runs:
            waiting, uncommitted = run.machine.unfinished()
            used += run.machine.input.used(waiting)
            pending += uncommitted
        done = used * rows / (rows + pending) if pending else used
        return {"done": done, "examples": epochs * sum(filter(None, shares))}

    def check_ranks(self, rank: int, world_size: int) -> None:
        """Raise ProtocolError where a rank is none, or a round of so many can not be made."""
        if rank < 0 and not world_size:
            return
        if not 0 <= rank < world_size:
            raise ProtocolError(
                f"rank must be between 0 and world_size-1 = {world_size - 1}, not {rank}"
            )
        if not self.segmented:
            return
        rows, capacity = world_size * self.properties["batch_size"], self._shape["capacity"]
        if capacity is not None and capacity < rows:
            raise ProtocolError(
                f"world_size={world_size}: a round is of world_size x batch_size={rows} examples "
                f"in flight, and the feed has capacity={capacity}; declare capacity={rows} or more"
            )

    def fault_of_states(self, batch: Batch, payload: Payload | None) -> str:
        """Return why these states do not fit a batch; "" if they do."""
        if payload is None:
            if self.stateful and not self.states_stay:
                return "a batch of segments is committed by its states: save them"
            return ""
        if self.states_stay or not self.stateful:
            return "the states of this feed stay with the trainer, if it has any"
        return self.states.fault_of_block(batch.rows, *payload)

    def fault_of_flush(
        self, batch: Batch | None, rows: Sequence[int], columns: Columns, block: Frame
    ) -> tuple[str, str]:
        """Return code and text of a fault of flushed states of some rows; "" if there is none.

        ``batch`` is the last one that the trainer has committed there, None where it has none.
        """
        if not self.stateful:
            return "state", "this feed has no states"
        if batch is None:
            return "stale", LANES_LOST
        if max(rows) >= batch.rows or len(set(rows)) < len(rows):
            return (
                "state",
                f"the rows of a flush are not different ones of {batch.rows}: {rows!s:.80}",
            )
        fault = self.states.fault_of_block(len(rows), columns, block)
        return ("state", fault) if fault else ("", "")

    def resized(self, sizes: Sequence[int]) -> None:
        """Note that the sizes of batches differ from the schema."""
        self.properties["resized"] = True
        if self.segmented:
            self.properties["batch_size"] = sizes[0]

    def sizes(self) -> dict[str, int]:
        """Return the number of batches ready and in flight; of segments the partitions know it."""
        standing = self.desk.standing()
        if self.segmented:
            return {}
        return {"ready": standing["ready"], "in_flight": standing["leased"] + standing["saving"]}

    def stored(self, partition: int) -> Callable[[], None]:
        """Return the call that reports to the desk the entries of a partition stored by then."""
        logged = self.desk.logged(partition)

        def call() -> None:
            if self.serves:
                self.desk.stored(partition, logged)
                self.wakes()

        return call

    def _name_of(self, nonce: bytes) -> str:
        """Return the name of a trainer, for people."""
        session = self.present.get(nonce)
        return "a trainer" if session is None else session.described

    def describe(self, now: float) -> str:
        """Describe the cause of a trainer's wait, for the text of its deadline error."""
        waiting = [(number, one) for number, one in self.partitions.items() if one.waits]
        waits = [f"partition {number}: {one.waits}" for number, one in waiting[:3]]
        if self.serves:
            waits.append(self.desk.describe(now, self._name_of))
        return "; ".join(filter(None, waits))

    def lost(self, session: Session) -> None:
        """Note that the connection of a trainer is lost, which may come back."""
        self._away = {one: until for one, until in self._away.items() if until > session.seen}
        self._away[session.nonce] = session.seen + self._run.lease_ttl_s

    def back(self, trainer: bytes) -> None:
        """Note that a trainer is back."""
        self._away.pop(trainer, None)

    def is_heard(self, now: float) -> bool:
        """Return whether all trainers have acknowledged the end of the feed.

        It waits for trainers that are present and have not acknowledged the end, and for
        those whose connection is lost, but no longer than a lease lasts.  Where the feed had ended
        before this server began, trainers of the earlier one get some time to return.
        """
        ttl_s = self._run.lease_ttl_s
        if self._ended_at is None:
            self._ended_at = now
        if now >= self._ended_at + ttl_s:
            return True
        began_ended = self.durable and self.counters.counts["batches"] == self.counters.before
        if began_ended and now < self._ended_at + _RETURN_S:
            return False
        deaf = any(session.uses for session in self.present.values())
        return not deaf and not any(until > now for until in self._away.values())

    def fail(self, code: str, text: str) -> None:
        """Stop the feed; the first reason stands."""
        if self.failure is None:
            self.failure = (code, shown(text, _LONGEST_TEXT))
            self.opened, self.serves = True, False
            self.wakes()

    def close(self, cancel: bool) -> bool:
        """Close the input; return False where it is closed, unless ``cancel`` is new."""
        if self.closing is not None and self.closing >= cancel:
            return False
        self.closing = cancel
        return True

    def on_read(self, part: ServedPartition) -> None:
        """Count the dropped rows of a partition; fail the feed if too many are bad."""
        part.status["dropped"] = part.run.dropped()
        if self._policy.max_bad_examples is None:
            return
        dropped = added(part.status.get("dropped", {}) for part in self.partitions.values())
        bad = {r[4:]: n for r, n in dropped.items() if r.startswith("bad:")}
        if text := self._policy.too_bad(bad):
            self.fail("data", text)
        elif self.owners > 1 and bad != self._bad:
            self._bad = bad
            self._report("bad", bad=bad)
