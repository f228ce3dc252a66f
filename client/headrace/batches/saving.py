"""The batches of segments in a trainer's hands, which the saves of their states commit.

    take ──► in hand ──► save_state … save_state ──► handed to the session ──► answered, or refused
                │                    │
                │ the feed is left   └ a mistake: raised at once, nothing sent, it stays in hand
                ▼
            given back

Any thread may save.  A save of several states is one: either all of them are saved, or none.  A
second save of a state is refused.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import (
    HeadraceError,
    ProtocolError,
    StaleLease,
    StateError,
    from_code,
)
from headrace_proto.segment_layout import SegmentLayout, State
from headrace_proto.step_messages import made

from ..connection.batch_memory import BatchGone
from ..connection.link import Link
from ..connection.session import States, named
from ..connection.state_block import BlockMaker, Upload, host, presented, strings_in, unknown_state
from ..framework import NUMPY, Framework
from ..machine.requests import flush_states
from ..machine.trainer import Held
from .lane_states import LaneStates, continued
from .segments import BY_STATES, SegmentBatch, is_tracing
from .taken import TakenBatches, of_replicas

_LOST = (
    "its lease was lost with its session, and its rows go to another trainer or come again: these "
    "states do not count"
)

_HERE = States([])  # those of a commit whose states stay with the trainer
#: Number of segment keys by which the text of a deadline names a batch.
_NAMED_KEYS = 3

#: For users of torch, whose libraries ask for a batch before the step on the last one.
_FETCHED_AHEAD = (
    ".  Save them before asking for the next batch; for Lightning, which fetches ahead, "
    "headrace.lightning.FeedDataModule does so"
)


@dataclass(eq=False)
class _Saves:
    """The saves of one batch."""

    taken_at: float
    lock: Any  # held during a save
    values: dict[str, Any]  # by saved state; None: in the upload
    lanes: Any = field(default=None, init=False)  # of its rows, where states stay here, …
    before: LaneStates | None = field(default=None, init=False)  # … and the states before it
    upload: Upload | None = field(default=None, init=False)


class Saving(TakenBatches):
    """The batches in hand of one feed, and the saves of their states."""

    def __init__(self, link: Link, layout: SegmentLayout, framework: Framework) -> None:
        super().__init__(link)
        self.explicit = False
        self.layout = layout
        self.kept = layout.kept
        self._lanes: dict[int, LaneStates] = {}  # kept states by partition
        self._framework = framework
        self._maker, self._states = BlockMaker(layout.states), len(layout.states)
        self._flushing = threading.RLock()  # a handler of a signal may flush amid a save
        link.waits.explain = self.explain
        layout.saving = weakref.ref(self)

    # Taking

    def accepts(self, held: Held) -> bool:
        """Return whether the batch before in the same lanes is saved, or its lease has ended."""
        trainer = self._link.member.trainer
        if len(trainer.hands) == len(trainer.ready):
            return True
        partition = held.given.partition
        return not any(
            one.taken and not one.stale and one.given.partition == partition
            for one in trainer.hands.values()
        )

    def begin(self, held: Held, block: np.ndarray) -> SegmentBatch:
        """Make the batch that was taken.

        BatchGone where it continues one that the server has refused, so the kept states are wrong.
        """
        given, layout = held.given, self.layout
        slots = layout.slots.of(given)
        batch = SegmentBatch(given, slots, block, self._framework, None, layout)
        # A flush sends the states after the last save, so no save may happen during it.
        lock = self._flushing if self.kept else threading.Lock()
        batch._saving = self
        batch._saves = saves = _Saves(self._link.waits.looked_at, lock, {})
        if self.kept:
            kept = self._lanes.get(given.partition)
            lanes, starts = batch.array("@lane").tobytes(), batch.array("@starts")
            void = self._link.member.void  # mostly empty
            if void and kept and kept.token in void and len(starts) < batch.rows:
                raise BatchGone
            batch._cache.update(continued(batch, lanes, starts, kept))
            saves.lanes, saves.before = lanes, kept
        held.shown = batch
        return batch

    def reject(self, held: Held, block: np.ndarray | None, error: BaseException) -> None:
        if not self.kept or block is None or isinstance(error, (BatchGone, HeadraceError)):
            self._link.give_back(held.given.token)  # its lanes go on from the states before it
        else:  # such as Ctrl-C: later batches go on from this one
            held.block = block
            self._link.untake(held)

    # Commits: here saves of states take their place

    def on_next(self) -> None:
        """Do nothing."""

    def commit(self, batches: Any, feed: Any = None) -> None:
        if batches is not None:
            raise ValueError(f"commit(…): {BY_STATES}")

    def for_snapshot(self, upto: Any, feed: Any = None) -> None:
        if upto is not None:
            raise ValueError(f"snapshot(upto=…): {BY_STATES}; snapshot() has all saves")

    def leave(self, commit: bool) -> None:
        """Keep unsaved batches: they go back once the lanes are flushed."""

    def doubt(self) -> str:
        return ""

    # Saving

    def save_token(self, token: Any, values: Mapping[str, Any]) -> Any:
        """Save states of the batch with this token; in a traced function, the operation.

        It saves the values of this process where they are by replica, each with its token.
        """
        self._link.check_usable()
        if not isinstance(values, Mapping):
            raise TypeError(f"values={values!r:.80} is not a dict of the state's name to its value")
        replicas = of_replicas(token)
        if replicas is not None:
            for number, one in enumerate(replicas):
                local = {name: (of_replicas(v) or (v,))[number] for name, v in values.items()}
                self.save_token(one, local)
            return None
        try:
            found = self._shown(int(token))
        except (TypeError, ValueError):
            if not is_tracing():
                raise TypeError(f"token={token!r:.80} is not the token of a batch") from None
            return self._traced(token, values)
        if found is None:
            known = sorted(held.given.token for held in self._open())
            raise StateError(
                f"token={int(token)} is no batch in this trainer's hands that waits for states; "
                f"those are {known[:20]}"
            )
        return self.save(found.shown, values)

    def _traced(self, token: Any, values: Mapping[str, Any]) -> Any:
        from .traced import save_op

        return save_op(self.layout, token, values)

    def save(self, batch: SegmentBatch, values: Mapping[str, Any]) -> Any:
        """Save states of a batch: all of these, or none; in a traced function, the operation."""
        if not self._link.usable:
            self._link.check_usable()
        ready = {}
        try:
            for name, value in values.items():
                ready[name] = self._ready(batch, name, value)
        except ValueError:
            if not is_tracing():
                raise
            return self._traced(batch.token, values)
        saves = batch._saves
        with saves.lock:
            saved = saves.values
            if saved and not saved.keys().isdisjoint(ready):
                name = next(name for name in ready if name in saved)
                raise StateError(
                    f"state {name!r} of batch {batch.partition}/{batch.number} is saved "
                    "already, and that stands"
                )
            try:
                if self.kept:
                    saved.update(ready)
                else:
                    upload = saves.upload or self._upload(saves, batch)
                    for name, value in ready.items():
                        saved[name] = upload.put(name, value)
                if len(saved) < self._states:
                    return None
                if self.kept:
                    states = _HERE
                    kept = batch.token, saves.lanes, batch._goes_on(), saved.copy()
                    self._lanes[batch.partition] = made(LaneStates, kept)
                else:
                    states = States(*upload.finish(saved))
                counts = self._link.commit(batch.token, states)
            except BaseException:  # such as Ctrl-C: what the session lacks can be saved again
                if batch.token in self._link.member.trainer.hands:
                    for name in ready:
                        saved.pop(name, None)
                raise
            saves.upload = None
            if not counts:
                if self.kept:  # what goes on here does so from the states before
                    del self._lanes[batch.partition]
                    if saves.before is not None:
                        self._lanes[batch.partition] = saves.before
                raise StaleLease(f"{named(batch)}: {_LOST}")
        return None

    def _upload(self, saves: _Saves, batch: SegmentBatch) -> Upload:
        """Begin the block that is sent with the last state."""
        session = self._link.session_of(batch.partition)
        buffers = session.buffers if session.mapped.last else None
        saves.upload = upload = Upload(self._maker, batch.rows, buffers)
        return upload

    def _ready(self, batch: SegmentBatch, name: str, value: Any) -> Any:
        """Return a value in the form that is saved; ValueError or TypeError where it can not be."""
        state, own = self.layout.states.get(name), self._framework
        if state is None:
            raise unknown_state(name, self.layout.states)
        if own is NUMPY or not self.kept:
            array = own.on_host(value, state.dtype, (batch.rows, *state.dims))
            if array is not None:
                return array
        try:
            face, value = presented(state, value, batch.rows, own)
            return self._usable(state, face, value)
        except ValueError as error:
            text = str(error)
            if not text.startswith("state "):
                text = f"state {name!r} can not be read: {text}"
            raise ValueError(text) from error

    def _usable(self, state: State, face: Framework, value: Any) -> Any:
        """Return a value in the form that is copied, or that is kept where states stay here."""
        own = self._framework
        if not self.kept:
            array = host(state, value, face)
            return strings_in(state, array) if state.dtype == BYTES else array
        if state.dtype == BYTES:
            array = host(state, value, face)
            strings_in(state, array)
            return own.kept(value) if face is own else own.strings(array)
        if face is own:
            return own.kept(value)
        # An array becomes a tensor of the feed.
        return own.numbers(np.array(host(state, value, face), order="C"), state.dtype)

    # Lanes

    def flush(self, at_most_s: float = inf) -> None:
        """Send the states of all unfinished sequences to the server, for their next trainer."""
        fault: HeadraceError | None = None
        with self._flushing:
            for partition, kept in [*self._lanes.items()]:
                rows = np.flatnonzero(kept.goes_on).tolist()
                if not rows or kept.token in self._link.member.void:  # others continue them
                    continue
                parts = [*self._maker.parts(kept.states, rows, self._framework)]
                owner = [self._link.session_of(partition)]
                answer = self._link.ask(flush_states(kept.token, parts), at_most_s, owner)
                if answer.code == "stale":  # others continue them; batches here still do so, too
                    kept.goes_on[:] = False
                if answer.code:
                    fault = fault or from_code(answer.code, answer.text)
        if fault is not None:
            raise fault

    @property
    def unsaved(self) -> bool:
        """Whether a batch in hand waits for states."""
        with self._lock:
            return bool(self._open())

    # In words

    def explain(self, now: float = 0.0) -> str:
        """Name the states that are not saved, for the text of a deadline."""
        names_of = self.layout.states.keys()
        with self._lock:
            every = [held.shown for held in self._open()]
        unsaved = [batch for batch in every if names_of - batch._saves.values.keys()]
        if not unsaved:
            return ""
        batch, saves = unsaved[0], unsaved[0]._saves
        owed = [repr(name) for name in names_of if name not in saves.values]
        keys: list[bytes] = []
        with contextlib.suppress(ProtocolError):  # the server sent invalid strings
            keys = batch.keys()[:_NAMED_KEYS]
        names = [key.decode("utf-8", "backslashreplace") for key in keys]
        listed = ", ".join([*names, "…"] if batch.rows > len(names) else names)
        others = f", and states of {len(unsaved) - 1} later batches" if len(unsaved) > 1 else ""
        remedy = _FETCHED_AHEAD if self._framework.name == "torch" else ""
        return (
            f".  This trainer has not saved state{'s' if len(owed) > 1 else ''} {', '.join(owed)} "
            f"of {batch.rows} segments ({listed}) that it took {now - saves.taken_at:.0f} s ago as "
            f"batch {batch.partition}/{batch.number}{others}{remedy}"
        )
