"""The desk of one feed: its dispatcher, and the facts that partitions and trainers have reported.

The desk turns messages of partitions and trainers into events of the machine.  It never reads
payload: a batch is a place in a segment.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace_proto.messages import Answered, Hello
from headrace_proto.schema import Field

from ..core.claims import Acknowledged
from ..core.dispatch import Dispatcher
from ..core.dispatch_effects import Batch
from ..core.end_of_feed import Farewell
from ..core.rounds import DealtRounds
from ..core.segment_supply import check_rows
from ..core.trainers import Runs
from ..process.config import FeedConfig, RunConfig
from ..shaping.plan import RESIZED
from .counters import Counters
from .events import Opened
from .resuming import Later, Reports, Resuming
from .state_blocks import LANES_LOST, StateBlocks, StateFlush

logger = logging.getLogger("headrace.trainers")


class Usage(NamedTuple):
    """The use of a feed: times are Unix times, 0 without commits.

    The store of a partition counts its commits over all servers, and has the times of the first and
    the last one.
    """

    finished: bool
    batches: int
    since: float
    until: float


def usage_of(finished: bool, stored: Iterable[Sequence[float] | None]) -> Usage:
    """Return the use of a feed; ``stored``: by partition, see ``Stores.used``."""
    known = [commits for commits in stored if commits is not None]
    if not known:
        return Usage(finished, 0, 0.0, 0.0)
    counts, firsts, lasts = zip(*(commits[:3] for commits in known), strict=True)
    return Usage(finished, int(sum(counts)), min(firsts), max(lasts))


#: Maximum length of an error's text, which must fit a message's header in any script.
_LONGEST_TEXT = 8000


@dataclass(slots=True)
class _Partition:
    """The reports of one partition."""

    open: bool = False
    done: bool = False  # whether it has made all its batches
    waits: str = ""  # description of what its next batch lacks …
    waits_on: int = -1  # … or number of the batch whose trainer must act
    share: int | None = None  # examples of an epoch, where that is known


class Desk:
    """The desk of one feed at one owner."""

    def __init__(
        self,
        config: FeedConfig,
        run: RunConfig,
        owner: int = 0,
        tell: Callable[[Any], object] = lambda message: None,
        used: Callable[[int], list[float] | None] = lambda partition: None,
    ) -> None:
        """``tell`` sends a message to its trainer.  ``used`` returns the commits that a partition
        has stored, see ``Stores.used``.
        """
        self.name, self.owner = config.name, owner
        self.partitions = {number: _Partition() for number in run.partitions_of(config, owner)}
        self.owners = run.owners_of(config)
        self.of_feed = config.partitions  # partitions at all owners
        self.of_share = "{}/{}".format(*config.share)
        self.shared = self.owners > 1 or config.share[1] > 1
        # It distinguishes tokens of this server from those of an earlier one at the same address.
        self.term = term = run.term
        self.durable = run.state_directory is not None  # whether its state outlives the server
        self.dispatcher = Dispatcher(
            [*self.partitions],
            run.lease_ttl_s,
            run.max_credits,
            term,
            order=config.order,
            shared=self.shared,
            states=config.states,
            across_batches=config.declaration.order.across_batches,
        )
        self.schema: Any = None
        self.properties: Any = {}  # sent to trainers beside the schema
        self.states = StateBlocks([], run.max_state_bytes)
        self.states_stay = False  # whether states stay with the trainers
        self.failure: tuple[str, str] | None = None
        self.closing: bool | None = None  # None: the input is open; else whether to drop rows
        self.reports: Reports = []  # for the supervisor
        self.resuming = Resuming(config, self.durable, run.starts, self.owners == 1, self.reports)
        self.farewell = Farewell(run.lease_ttl_s)
        self.counters = Counters(self.dispatcher)
        self._bad: dict[str, int] = {}  # bad examples, as the supervisor knows
        self._shape = config.declaration.shape.options
        self._policy = config.declaration.policy
        self._tell = tell
        self._run = run
        self._config = config
        self.runs = Runs(term)
        self._used = used

    @property
    def opened(self) -> bool:
        """Whether all partitions are open (or done, or the feed has failed)."""
        return self.failure is not None or all(one.open for one in self.partitions.values())

    @property
    def over(self) -> bool:
        return self.failure is not None or self.dispatcher.ended

    # Partitions

    def on_opened(self, message: Opened) -> None:
        self.schema = self.schema or message.schema
        self.properties = {**self.properties, **message.properties}
        if self.durable:
            self.properties.update(durable=True, epoch=self.term)  # that is its name on the wire
        else:
            self.properties["recovers"] = True
        self.properties["generation"] = self.resuming.generation
        self._add_epochs()
        self.states_stay = message.properties.get("placement") == "trainer"
        states = message.properties.get("states", ())
        # Flushed states of any size are stored, as the server has promised.
        most = sys.maxsize if self.states_stay else self._run.max_state_bytes
        fields = [Field(dtype, tuple(dims)) for _, dtype, dims in states]
        rows = 0 if self.states_stay else self._shape.get("batch_size", 0)
        self.states = StateBlocks(fields, most, rows)
        here = self.partitions[message.partition]
        if not here.open:
            here.open, here.share = True, message.share
            used = self._used(message.partition)
            batches, rows = (int(used[0]), int(sum(used[3:]))) if used else (0, 0)
            # A partition does not make again the batches that an earlier server has seen done.
            number = batches if self.dispatcher.segmented else message.next
            self.dispatcher.started(message.partition, number, message.turn, message.epoch)
            self._load_rounds(message)
            self.counters.go_on(message.partition, batches, rows, self.durable)
            if used and not self.durable:  # batches of an earlier owner of this server
                self.resuming.touched()
            if self.opened:
                self.resuming.opened(any(map(self._used, self.partitions)))

    def _add_epochs(self) -> None:
        """Add the epochs of the feed to its properties."""
        order = self._config.declaration.order
        if order.epochs != 1:
            self.properties["epochs"] = order.epochs
        if not order.across_batches:
            self.properties["across_batches"] = False

    def described(self, world_size: int = 0) -> dict[str, Any]:
        """Return the properties of the feed, for a trainer that joins."""
        properties = {**self.properties, "length": self._length(world_size)}
        if self.shared:
            properties.update(self.dispatcher.announced())
        if self._config.order == "lanes" and (sequences := self._sequences()) is not None:
            properties["sequences"] = sequences
        epoch = self.dispatcher.first_epoch(bool(self.usage().batches))
        return properties if epoch is None else {**properties, "at_epoch": epoch}

    def _length(self, world_size: int) -> int | str:
        """Return the number of batches here for each rank; or why it is unknown."""
        declaration = self._config.declaration
        if self.properties.get("resized"):
            return "its batch size was changed"
        if reason := declaration.uncounted():
            return reason
        shares = [one.share for one in self.partitions.values()]
        if any(share is None for share in shares):
            return "only reading shows how many examples it has"
        counts = (declaration.batches_of(share or 0) for share in shares)
        return sum(count // max(1, world_size) for count in counts)

    def _sequences(self) -> int | None:
        """Return how many sequences the lanes here can hold at once; None where nobody knows."""
        declaration, order = self._config.declaration, self._config.declaration.order
        epochs = order.epochs if order.across_batches else 1
        shares = [one.share for one in self.partitions.values() if one.share is not None]
        if declaration.recounting_stage or epochs is None or len(shares) < len(self.partitions):
            return None
        return sum(shares) * epochs

    def _load_rounds(self, message: Opened) -> None:
        """Load the unfinished rounds that an earlier owner has dealt to ranks."""
        if message.rounds:
            dealt = DealtRounds(*message.rounds)
            if not self.dispatcher.segmented:  # for segments the partition itself stores its rounds
                dealt = dealt.left(message.next, frozenset(message.done))
            self.dispatcher.load_rounds(message.partition, dealt)
            self.runs.goes_on(dealt.run)

    def resized(self, sizes: Sequence[int]) -> None:
        """Note that batches have other sizes than the schema says."""
        self.properties.update(RESIZED)
        if self.dispatcher.segmented:
            self.properties["batch_size"] = sizes[0]

    def touched(self) -> None:
        """Note that a trainer commits a batch."""
        if not self.resuming.is_touched:
            self.resuming.touched()

    def usage(self) -> Usage:
        """Return the progress of this and earlier servers with the feed."""
        ended = self.failure is None and self.dispatcher.ended
        return usage_of(ended, map(self._used, self.partitions))

    def on_made(self, batch: Batch) -> None:
        self.partitions[batch.partition].waits = ""
        self.counters.on_made(batch)
        self.dispatcher.made(batch)

    def on_counted(self, partition: int, counts: dict[str, Any]) -> None:
        self.counters.on_counted(partition, counts)
        self._check_bad()

    def on_finished(self, partition: int, counts: dict[str, Any]) -> None:
        """Note that all batches of a partition were made."""
        here = self.partitions[partition]
        here.done, here.waits = True, ""
        self.on_counted(partition, counts)
        self.dispatcher.partition_ended(partition)

    def on_next_epoch(self, partition: int, epoch: int, turn: int) -> None:
        self.dispatcher.epoch_begun(partition, epoch, turn)

    def on_border(self, partition: int, epoch: int) -> None:
        self.dispatcher.epoch_rests(partition, epoch)

    def on_waiting(self, partition: int, text: str, batch: int = -1) -> None:
        """Note what the next batch lacks; ``batch``: the one whose states it waits for."""
        here = self.partitions[partition]
        here.waits, here.waits_on = text, batch

    def on_starved(self, partition: int) -> None:
        self.dispatcher.starved(partition)

    def on_dry(self, stripe: int) -> None:
        self.dispatcher.dry(stripe)

    def on_stored(self, partition: int, batches: list[tuple[int, str, str]]) -> None:
        """Take the numbers of stored commits, or refused ones by an error's code and text."""
        self.partitions[partition].waits = ""
        self.dispatcher.stored(partition, batches)

    def on_judged(self, token: int, verdict: str, number: int) -> None:
        self.dispatcher.claimed(token, verdict, number)

    def on_flushed(self, session: int, request: int) -> None:
        self._tell(Answered(session, request))

    def run_of(self, hello: Hello, now: float) -> int:
        """Return the run of a new trainer, 0 without a rank.  Later where it is not known yet."""
        if hello.rank < 0 or not hello.world_size:
            return 0
        self._check_rows(hello.world_size)
        dispatcher, runs = self.dispatcher, self.runs
        run = runs.judge(hello, dispatcher.ranked, now)
        ends = run != runs.current and not dispatcher.present and dispatcher.in_doubt
        if run is None or ends:
            raise Later("it is not known yet whether trainers of an earlier run are at work")
        return run

    def _check_rows(self, world_size: int) -> None:
        """Raise JoinRefused where segments can not be dealt to ``world_size`` ranks."""
        if not self.dispatcher.segmented:
            return
        check_rows(world_size, self.properties["batch_size"], self._shape["capacity"])

    def on_hello(self, session: int, hello: Hello) -> None:
        """Claim the batches of an earlier server that a new session holds.

        The state must contain the commits that were acknowledged to the trainer.
        """
        last = dict(zip(hello.committed[::2], hello.committed[1::2], strict=False))
        for partition, token in last.items():  # one question for each partition, not more
            if partition in self.partitions and token >> 32 != self.term:
                self.dispatcher.recall(session, Acknowledged(token, partition))
        self.claim(session, hello)

    def claim(self, session: int, hello: Hello) -> None:
        """Reserve the batches of an earlier server that a trainer holds.

        A session that goes on may name more than when it was opened: a trainer greets in the groups
        of the earlier owners before it knows how many there are now.
        """
        for place in sorted(hello.batches, key=lambda place: place.token):
            if place.partition in self.partitions:
                self.dispatcher.claim(session, place, place.token not in hello.held)

    def on_flush(self, session: int, message: Any, block: bytes) -> tuple[str, str]:
        """Store flushed states; return a fault's code and text, or else the partition answers."""
        dispatcher = self.dispatcher
        if not dispatcher.stateful:
            return "state", "this feed has no states"
        token, rows = message.token, message.rows
        batch = dispatcher.last_saved(session, token)
        if batch is None and dispatcher.lost_lanes(session, token):
            return "stale", LANES_LOST
        if batch is None:
            return "state", f"{token} is not the last batch that trainer {session} has saved"
        if not rows or max(rows) >= batch.rows or len(set(rows)) < len(rows):
            text = f"the rows of a flush are not different ones of {batch.rows}: {rows!s:.80}"
            return "state", text
        fault = self.states.fault_of_block(len(rows), message.columns, block)
        if fault:
            return "state", fault
        order = batch.number, session, message.request
        flush = StateFlush(*order, rows, message.columns, message.more)
        dispatcher.flush(batch, (flush, block))
        return "", ""

    def describe(self, now: float) -> str:
        """Describe the cause of a trainer's wait, for the text of its deadline error."""
        waits = []
        waiting = [(number, one) for number, one in self.partitions.items() if one.waits]
        for partition, one in waiting[:3]:
            text = one.waits
            holder = self.dispatcher.holder(partition, one.waits_on)
            if holder is not None:
                session, since = holder
                text += f", leased to {self.dispatcher.named(session)} for {now - since:.0f} s"
            waits.append(f"partition {partition}: {text}")
        return "; ".join([*waits, self.dispatcher.describe(now)])

    def fail(self, code: str, text: str) -> None:
        """Stop the feed; the first reason stands."""
        if self.failure is None:
            self.failure = (code, text[:_LONGEST_TEXT])

    def close(self, cancel: bool) -> bool:
        """Close the input; return False where it is closed, unless ``cancel`` is new."""
        if self.closing is not None and self.closing >= cancel:
            return False
        self.closing = cancel
        return True

    def _check_bad(self) -> None:
        if self._policy.max_bad_examples is None:
            return
        bad = self.counters.bad()
        if text := self._policy.too_bad(bad):
            self.fail("data", text)
        elif self.owners > 1 and bad != self._bad:
            self._bad = bad
            self.reports.append(("bad", {"bad": bad}))
