"""A partition of a log at work whose segments are handed out before their sequences have ended.

    log ─► events ─► machine ─► a batch ─► steps of its segments, as a chunk of their own
                        │
                     commit ─► record: position up to which events were applied, states,
                                       sequences that began or ended ─► stored ─► the log lets go

A record has each pending sequence: one that has not been trained yet has no state.  So a later life
goes on from the record alone, and reads the log from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..making.segment_cutting import Cutting, Offer
from ..making.slab import Slab
from ..making.state_table import stored_states
from ..reading.chunk import ORDINAL_BITS
from ..reading.intake import Intake
from ..reading.sources.live import LogReader
from ..reading.stages.filter import Filter
from ..shaping.log_admission import END, LogAdmission
from ..shaping.plan import Read
from ..shaping.spans import Spans
from ..shaping.stored_state import AT, CHUNK, NO_KEY, OPEN, ROW, Change, Examples, Saved
from ..shaping.stored_state import END as ENDS
from .segment_run import SegmentRun

#: Records of the log that are read at once …
_READ = 1024
#: … and that are applied without a commit before that is stored.
_UNSTORED = 4096
#: Facts of the rows of these feeds.
_FACTS = {"version": Field("int64", ()), "age": Field("float64", ()), "stale": Field("bool", ())}


def needs_of(saved: Saved, left: int) -> tuple[int, dict[int, int]]:
    """Return up to where a journal has applied its log, and the first step that it needs of each
    pending sequence."""
    if "seen" not in saved.meta:
        return -1, {}
    first = np.maximum(saved.examples.numbers[AT] - left, 0)
    pending = zip(saved.examples.lines.tolist(), first.tolist(), strict=True)
    return msgpack.unpackb(saved.meta["seen"])[0], dict(pending)


class LiveRun(SegmentRun):
    """One partition at work."""

    def __init__(self, intake: Intake, cutting: Cutting, slab: Slab, source: LogReader) -> None:
        super().__init__(intake, cutting, slab)
        assert self.machine.log is not None
        self._log: LogAdmission = self.machine.log
        self._source, self._feed = source, source.growing(self.number)
        self._log.newest = lambda of, step: self._feed.newest(of, step)[:2]
        self._log.key = self._feed.key
        self._filters = [step for step in intake.stages.steps if isinstance(step, Filter)]
        self._told = -1  # position up to which the log is applied in the last record
        self._release: tuple[int, dict[int, int], list[int]] | None = None

    @property
    def facts(self) -> Mapping[str, Field]:
        return _FACTS

    def set_version(self, version: int) -> None:
        self._log.wanted_policy = max(self._log.wanted_policy, version)

    def lacks(self) -> str:
        rest, steps, key = self._log.resting()
        if not rest:
            return ""
        first = f"sequence {key.decode(errors='backslashreplace')!r:.200} lacks {steps} steps"
        return f": {rest} sequences rest; {first}, the fewest of them"

    def status(self) -> dict[str, Any]:
        status = super().status()
        status["segment_standing"]["resting"] = self._log.resting()[0]
        return status

    @property
    def unstored(self) -> bool:
        return bool(self._log.gone) or self._log.seen - self._told >= _UNSTORED

    # Input

    def _read(self, read: Read, wait: bool = True) -> bool:
        """Take events of the log; return False where none is there."""
        self._next_read = None
        events, position, over = self._feed.events(_READ)
        if self._feed.waits:
            self._log.take_events((), position)
            self.machine.input.failed()
            return False
        if self.cutting.phased and (opened := [one.of for one in events if one.opens]):
            drawn = dict(zip(opened, self._openings(opened), strict=True))
            events = [one._replace(opening=drawn.get(one.of, 0)) for one in events]
        empty = set[int]()
        for one in events:
            if one.opens and one.close == END and not one.steps:
                empty.add(one.of)
                error = DataError(
                    f"log {self._source.name!r}, partition {self.number}, record {one.position}: a "
                    "whole example has sequences of unequal lengths, or without a step: nothing "
                    "can be cut"
                )
                self.intake.bad.report(error, "unequal_lengths")
        if self._filters:
            opened = [one.of for one in events if one.opens]
            refused = self._refused([of for of in opened if of not in empty])
            events = [one for one in events if one.of not in refused]
        self.intake.count_dropped()
        self.intake.check_bad()
        self._log.take_events(events, position)
        self.intake.rows_read += len(events)
        self.machine.input.arrived(read, 0, None if over else self.intake.start)
        return True

    def _refused(self, opened: Sequence[int]) -> set[int]:
        """Return the new sequences whose context a filter refuses."""
        chunk = self._source.contexts(self.number, opened)
        self.intake.bad.hand.hold(chunk, 0)
        for step in self._filters:
            chunk = step.apply(chunk, self.intake.bad) if len(chunk) else chunk
        refused = {*opened}.difference((chunk.ordinals & (1 << ORDINAL_BITS) - 1).tolist())
        self._feed.refuse(refused)
        return refused

    def _openings(self, opened: Sequence[int]) -> list[int]:
        """Return the steps of first segments of sequences."""
        drawn: list[int] = self.cutting.drawn(self._ordinals(opened), 0).tolist()
        return drawn

    def _ordinals(self, of: Sequence[int]) -> np.ndarray:
        return self._source.ordinals(self.number, of)

    def _read_on(self) -> bool:
        read = self._next_read or self.machine.next_read(_READ)
        return read is not None and self._read(read)

    def _tidy(self) -> None:
        """Hold nothing."""

    def _arrived(self) -> None:
        """Do nothing: no key is refused, for a position names each sequence."""

    def pass_by(self) -> bool:
        machine, upto = self.machine, self._feed.overdue
        if upto <= self._told or self._passing >= 0 or self._ordered or self._behind:
            return False
        if machine.claimed:  # it may come back, and is written again
            return False
        if self._log.seen < upto:
            for plan in machine.unwritten:
                if plan.batch.body is None:
                    plan.begun = plan.begun or self._begin(plan)[0]
            machine.lose(upto)
            self._feed.skip(upto)
            self._passing = upto
        return True

    # Batches

    def _hold_steps(self, batches: Sequence[Spans]) -> None:
        self.held = {}
        for number, batch in enumerate(batches):
            batch.numbers[CHUNK], batch.numbers[ROW] = number, np.arange(len(batch))
            if len(batch):
                self.held[number] = self._offer(batch)

    def _offer(self, batch: Spans) -> Offer:
        """Return the steps of a batch, context included, as examples of their own."""
        geometry, lines = self.cutting.geometry, batch.lines.tolist()
        own = batch.first + geometry.own(batch.first, batch.openings)
        if batch.cut.packed:
            own = batch.after
        after = np.minimum(own + geometry.right, batch.end)
        first = np.maximum(batch.first - geometry.left, 0)
        ranges = zip(lines, first.tolist(), after.tolist(), strict=True)
        chunk, keys = self._source.cut(self.number, [*ranges])
        counts = np.where(batch.last, 1, 2) + batch.cut.before(batch.first)
        totals = np.where(batch.end < OPEN, batch.end, after)
        newest = zip(lines, np.minimum(own, batch.end).tolist(), strict=True)
        made = [self._feed.newest(of, step) for of, step in newest]
        versions = np.array([version for _, version, _ in made], np.int64)
        growth = self._log.growth
        stale = np.zeros(len(batch), bool)
        if growth.max_staleness is not None:
            stale = self._log.policy - versions > growth.max_staleness
        age = np.maximum(time.monotonic() - np.array([at for *_, at in made]), 0.0)
        facts = {"@version": versions, "@age": age, "@stale": stale}
        return self.cutting.cut(chunk, keys, first, np.array([counts, totals]).T, facts)

    # The store

    def _settle(self) -> None:
        """Build one record of what has changed since the last one."""
        log, tables = self._log, self.machine.entries
        self._saved.clear()
        if not (log.moved or log.gone or log.seen > self._told):
            return
        entries = np.array(sorted(log.moved), np.int64)
        numbers = tables.numbers_of(entries)
        numbers[AT] = tables.done[entries]
        floors = np.maximum(numbers[AT] - self.cutting.geometry.left, 0).tolist()
        saved = tables.version[entries] > 0
        states = self.states.stored(entries[saved]) if saved.any() else ()
        begun, trained = numbers[:, ~saved], numbers[:, saved]
        change = Change(Examples(trained, [NO_KEY] * trained.shape[1], states), [*log.gone])
        change.meta["seen"] = pack([log.seen, log.next_index, log.policy])
        self._changes += [Change(Examples(begun, [NO_KEY] * begun.shape[1])), change]
        self._release = log.seen, dict(zip(numbers[0].tolist(), floors, strict=True)), [*log.gone]
        self._told = log.seen
        log.moved.clear()
        log.gone.clear()

    def take_release(self) -> Callable[[], object] | None:
        released, self._release = self._release, None
        return partial(self._released, *released) if released else None

    def _released(self, seen: int, floors: Mapping[int, int], done: Sequence[int]) -> None:
        self._feed.release(seen, floors, done)
        if seen >= self._passing:
            self._passing = -1

    def _go_on(self, saved: Saved) -> None:
        seen, index, policy = msgpack.unpackb(saved.meta["seen"])
        self._log.policy = self._log.wanted_policy = policy
        begun, lines = saved.examples, saved.examples.lines.tolist()
        steps, ended, cut = self._feed.grown(begun.lines, seen)
        numbers, steps = begun.numbers.copy(), np.maximum(steps, begun.numbers[AT])
        numbers[ENDS] = np.where(ended, steps, OPEN)
        aborted = begun.lines[cut > 0].tolist()
        openings = self._openings(lines) if self.cutting.phased else [0] * len(lines)
        growing = np.array([steps, openings], np.int64)
        tables, stored = self.machine.entries, begun.numbers[6] > 0
        begun = Examples(numbers, [NO_KEY] * len(lines), begun.states)
        entries = self._log.resume_log(begun, growing, aborted, seen, index)
        self.states.grow(tables.size)
        with_states = begun.take(stored.nonzero()[0])
        self.states.put(entries[stored], stored_states(self.cutting.states, with_states))
        self.machine.input.read = seen + 1
        self._told = seen
