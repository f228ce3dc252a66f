"""Which batches a trainer has taken, and which of them are committed: by name, or by their states.

    take 1 ── take 2 ── take 3 ──►   the order of the feed
    on_next:   asking for 2 commits 1; one batch is in hand
    explicit:  commit(2) commits 2 alone; upto(2) commits 1 and 2, and leaves 3 open

    with states
    take ──► in hand ──► save_state … save_state ──► handed to the session ──► answered, or refused
                │                    │
                │ the feed is left   └ a mistake: raised at once, nothing sent, it stays in hand
                ▼
            given back

A batch is named by its token.  Any thread may commit or save, and TensorFlow asks for batches in
threads of its own; several batches may be in hand.  A save of several states is one: either all of
them are saved, or none.  A second save of a state is refused.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
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

from ..connection.batch_memory import BatchGone
from ..connection.link import Link
from ..connection.session import STALE, States, named
from ..connection.state_block import BlockMaker, Upload, host, presented, strings_in, unknown_state
from ..framework import Framework
from ..machine.requests import flush_states
from ..machine.trainer import Held
from .batch import Batch
from .segments import BY_STATES, LaneStates, SegmentBatch, continued, is_tracing

#: Committed batches that are remembered, so that a second commit of one is recognised.
_REMEMBERED = 10_000

_REMEDY = (
    'connect with commit="explicit" and commit each batch when it is trained, by '
    "feed.commit(batch) or, in Keras' fit, by the callback headrace.keras.CommitTrained(feed)"
)


_taken = operator.attrgetter("taken")


@dataclass(slots=True, eq=False)
class DatasetRun:
    """One iteration over ``as_dataset()``."""

    tokens: deque[int] = field(default_factory=deque)  # not committed, oldest first
    closed: bool = False  # TensorFlow has dropped the iterator
    ended: bool = False  # the feed has no more batches for it


class TakenBatches:
    """The batches in one trainer's hands, of one session of a feed without states."""

    kept: bool = False  # whether states stay with the trainer

    def __init__(self, link: Link) -> None:
        self.explicit = link.member.explicit
        self._link = link
        self._lock = link.lock
        self._done: OrderedDict[int, int] = OrderedDict()  # the last committed: their orders
        self._last_done: Held | None = None  # the committed batch that was taken last
        self.runs: list[DatasetRun] = []  # iterations of TensorFlow, in threads of its own
        self._warned = False
        if self.explicit:
            link.explain = self.explain

    def reject(self, held: Held, block: np.ndarray | None, error: BaseException) -> None:
        """Give back a batch that was taken and that an error keeps from the loop."""
        self._link.give_back(held.given.token)

    def on_next(self) -> None:
        """Commit what asking for another batch commits."""
        if not self.explicit:
            self.in_hand()

    def in_hand(self) -> None:
        """Commit all open batches."""
        with self._lock:
            self._settle(self._open())

    def commit(self, batches: Any, feed: Any = None) -> None:
        """Commit these batches, once; None stands for the one in hand.

        ValueError, and no change, where a token belongs to no batch that this trainer took.
        """
        if batches is None and self.explicit:
            raise ValueError(
                'commit(): a feed that was connected with commit="explicit" does not know which of '
                "its batches are trained; name them: feed.commit(batch), or a list"
            )
        if batches is None:
            self.in_hand()
            return
        with self._lock:
            wanted = dict.fromkeys(tokens_of("batches", batches, feed))
            for token in wanted:
                self._order("commit", token)
            self._settle([held for token in wanted if (held := self._shown(token))])

    def for_snapshot(self, upto: Any, feed: Any = None) -> None:
        """Commit what a snapshot commits: all in hand, or the batches up to one.

        ValueError where a batch that was taken later is committed: no snapshot can leave it out.
        """
        if upto is None:
            self.on_next()
            return
        tokens = tokens_of("upto", upto, feed)
        if len(tokens) != 1:
            raise ValueError(f"upto={upto!r:.120} are {len(tokens)} batches; name the last one")
        with self._lock:
            order, last = self._order("snapshot(upto=…)", tokens[0]), self._last_done
            if last is not None and last.taken > order:
                remedy = "" if self.explicit else f" by asking for the next one: {_REMEDY}"
                raise ValueError(
                    f"snapshot(upto=…): {named(last.given)}, taken after token={tokens[0]}, "
                    f"is committed already{remedy}"
                )
            self._settle([held for held in self._open() if held.taken <= order])

    def flush(self, at_most_s: float = inf) -> None:
        """Send states that stay with this trainer, where it has some, to the server."""

    def leave(self, commit: bool) -> None:
        """Commit or return what is open, of a trainer that leaves."""
        if commit:
            self.on_next()
        self.give_back()

    def give_back(self) -> None:
        """Return all open batches."""
        with self._lock:
            for held in self._open():
                self._link.give_back(held.given.token)

    # as_dataset

    def begin_run(self, run: DatasetRun) -> None:
        """Begin an iteration over a dataset where others stopped.

        With explicit commits, batches that TensorFlow fetched ahead in earlier ones go back:
        nobody trained on them.
        """
        with self._lock:
            if self.explicit:
                for token in [token for old in self.runs if old.closed for token in old.tokens]:
                    if self._shown(token):
                        self._link.give_back(token)
            self.runs = [*self._iterating, run]

    @property
    def _iterating(self) -> list[DatasetRun]:
        return [run for run in self.runs if not run.closed]

    def knows(self, run: DatasetRun) -> bool:
        """Return whether a run takes its batches from here; not after a rewind of the feed."""
        return any(one is run for one in self.runs)

    def fetched(self, run: DatasetRun, token: int) -> None:
        """Note that TensorFlow has fetched a batch in an iteration over a dataset."""
        with self._lock:
            while run.tokens and not self._shown(run.tokens[0]):
                run.tokens.popleft()
            run.tokens.append(token)

    def oldest(self, number: int) -> None:
        """Commit the oldest open batches of the last iteration over a dataset."""
        with self._lock:
            run = self.runs[-1] if self.runs else DatasetRun()
            oldest: list[Held] = []
            while run.tokens and len(oldest) < number:
                if held := self._shown(run.tokens.popleft()):
                    oldest.append(held)
            self._settle(oldest)

    # Words

    def doubt(self) -> str:
        """Return, once, why a snapshot may hold untrained batches; empty if it can not."""
        with self._lock:
            if self.explicit or self._warned or not self._iterating:
                return ""
            self._warned = True
            return (
                "snapshot(): TensorFlow fetches batches ahead of the loop that trains on "
                "as_dataset(), and asking for a batch commits the one before: the snapshot "
                f"may hold batches that are not trained yet.  For exact checkpoints {_REMEDY}; "
                "snapshot(upto=batch) names the last trained one"
            )

    def explain(self, now: float = 0.0) -> str:
        """Name the batches that this trainer has not committed, for the text of a deadline."""
        with self._lock:
            taken = self._open()
        if not taken:
            return ""
        return (
            f".  It has taken {len(taken)} of them and committed none of these, the first is "
            f'{named(taken[0].given)}: with commit="explicit" a batch is committed by '
            "feed.commit(batch) or batch.commit(), and by nothing else"
        )

    # Under the lock

    def _open(self) -> list[Held]:
        """Return the batches that the loop has, in the order in which it took them."""
        taken = [held for held in self._link.member.trainer.hands.values() if held.shown]
        taken.sort(key=_taken)
        return taken

    def _shown(self, token: int) -> Held | None:
        """Return a batch that the loop has."""
        held = self._link.member.trainer.hands.get(token)
        return held if held is not None and held.shown else None

    def _order(self, what: str, token: int) -> int:
        """Return when a batch was taken, in the order of all; ValueError where it was not."""
        held = self._shown(token)
        order = self._done.get(token) if held is None else held.taken
        if order is None:
            raise ValueError(
                f"{what}: token={token} is of no batch that this trainer holds: it was taken in "
                "another session, before the feed was taken back to a snapshot, or was given back"
            )
        return order

    def _settle(self, batches: list[Held]) -> None:
        for held in batches:
            token = held.given.token
            self._done[token] = held.taken  # Ctrl-C may come after it: a second commit may follow
            if self._last_done is None or held.taken > self._last_done.taken:
                self._last_done = held
            if len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            if not self._link.commit(token):
                self._link.member.refused.append(StaleLease(f"{named(held.given)} {STALE}"))


def of_replicas(value: Any) -> tuple[Any, ...] | None:
    """Return this process's values in a ``PerReplica`` of TensorFlow; None where it is none."""
    values = getattr(value, "values", None)
    return values if isinstance(values, tuple) else None


def tokens_of(name: str, batches: Any, feed: Any = None) -> list[int]:
    """Return the tokens of one or several batches or tokens of this feed.

    ``name`` is that of the argument, for errors.  Each feed numbers its tokens by itself, so a
    batch of another feed may have a token of this one.
    """
    if isinstance(batches, (Batch, SegmentBatch)):
        if batches._feed is not None and batches._feed() is not feed:
            raise ValueError(
                f"{name}={batches!r:.120}: token={batches.token} is of no batch that this trainer "
                f"holds: it was taken from another feed or by another connection than {feed!r}.  "
                "batch.commit() commits it where it came from"
            )
        return [batches.token]
    if not isinstance(batches, (str, bytes, bool)):
        replicas = of_replicas(batches)
        if replicas is not None:
            batches = list(replicas)
        try:
            return [operator.index(batches)]
        except TypeError:
            pass
        if isinstance(batches, Iterable) and not isinstance(batches, Mapping):
            return [token for one in batches for token in tokens_of(name, one, feed)]
    raise TypeError(
        f"{name}={batches!r:.120} is no batch and no token, which is an integer: give a batch of "
        "this feed, its batch.token, or a list of them"
    )


_LOST = (
    "its lease was lost with its session, and its rows go to another trainer or come again: these "
    "states do not count"
)

#: Number of segment keys by which the text of a deadline names a batch.
_NAMED_KEYS = 3

#: For users of torch, whose libraries ask for a batch before the step on the last one.
_FETCHED_AHEAD = (
    ".  Save them before asking for the next batch; for Lightning, which fetches ahead, "
    "headrace.lightning.FeedDataModule does so"
)


@dataclass(slots=True, eq=False)
class _Saves:
    """The saves of one batch."""

    taken_at: float
    lanes: Any = None  # of its rows, where states stay here
    lock: threading.Lock = field(default_factory=threading.Lock)
    values: dict[str, Any] = field(default_factory=dict)  # by state, once their save begins
    upload: Upload | None = None


class Saving(TakenBatches):
    """The batches in hand of one feed, and the saves of their states."""

    def __init__(self, link: Link, layout: SegmentLayout, framework: Framework) -> None:
        super().__init__(link)
        self.explicit = False
        self.layout = layout
        self.kept = layout.kept
        self._lanes: dict[int, LaneStates] = {}  # kept states by partition
        self._torn: set[int] = set()  # partitions that lost a batch: the following ones go back
        self._framework = framework
        self._maker = BlockMaker(layout.states)
        self._flushing = threading.RLock()  # a handler of a signal may flush amid a save
        link.explain = self.explain
        layout.saving = weakref.ref(self)

    # Taking

    def accepts(self, held: Held) -> bool:
        """Return whether the batch before in the same lanes is saved, or its lease has ended."""
        trainer, partition = self._link.member.trainer, held.given.partition
        return not (
            trainer.in_hand
            and any(
                one.taken and not one.stale and one.given.partition == partition
                for one in trainer.hands.values()
            )
        )

    def begin(self, held: Held, block: np.ndarray) -> SegmentBatch:
        """Make the batch that was taken.

        BatchGone where it continues a rejected one, until the server begins lanes anew.
        """
        saves = _Saves(self._link.looked_at)
        save = partial(self._save, saves)
        given, layout = held.given, self.layout
        slots = layout.slots.of(given)
        batch = SegmentBatch(given, slots, block, self._framework, None, layout, save)
        if self.kept:
            partition = given.partition
            saves.lanes = lanes = batch.array("@lane").copy()
            starts = batch.array("@starts")
            if partition in self._torn:
                if len(starts) < batch.rows:
                    raise BatchGone
                self._torn.discard(partition)
            kept = self._lanes.get(partition)
            for name, value in continued(batch, lanes, starts, kept).items():
                batch._cache["state:" + name] = value
        held.shown = batch, saves  # neither refers to the other: no cycle
        return batch

    def reject(self, held: Held, block: np.ndarray | None, error: BaseException) -> None:
        if not self.kept or block is None or isinstance(error, (BatchGone, HeadraceError)):
            self._give_up(held.given.partition, held.given.token)
        else:  # such as Ctrl-C: later batches go on from this one
            held.source.block = block
            self._link.untake(held)

    def _give_up(self, partition: int, token: int) -> None:
        """Give back a batch, and those that continue it in its lanes."""
        if self.kept:
            self._torn.add(partition)
        self._link.give_back(token)

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
        batch, saves = found.shown
        return self._save(saves, batch, values)

    def _traced(self, token: Any, values: Mapping[str, Any]) -> Any:
        from .traced import save_op

        return save_op(self.layout, token, values)

    def _save(self, saves: _Saves, batch: SegmentBatch, values: Mapping[str, Any]) -> Any:
        """Save states of a batch: all of these, or none; in a traced function, the operation."""
        self._link.check_usable()
        saved, kept = saves.values, self.kept
        try:
            ready = [self._ready(saved, batch, name, value) for name, value in values.items()]
        except ValueError:
            if not is_tracing():
                raise
            return self._traced(batch.token, values)
        # A flush sends the states after the last save, so no save may happen during it.
        with self._flushing if kept else saves.lock:
            held = self._link.member.trainer.hands.get(batch.token) if kept else None
            if kept and (held is None or held.stale):
                self._give_up(batch.partition, batch.token)
                raise StaleLease(f"{named(batch)}: {_LOST}")
            for state, _ in ready:
                if state.name in saved:
                    raise _saved_before(batch, state)
            last = len(saved) + len(ready) == len(self.layout.states)
            states = States([]) if kept else self._copied(saves, batch, ready, last)
            try:
                for state, value in ready:
                    saved[state.name] = value if kept else None
                if not last:
                    return None
                if kept:
                    states_here = LaneStates(
                        batch.token, saves.lanes, batch._goes_on(), saved.copy()
                    )
                    self._lanes[batch.partition] = states_here
                counts = self._link.save(batch.token, states)
            except BaseException:  # such as Ctrl-C: what the session lacks can be saved again
                if batch.token in self._link.member.trainer.hands:
                    for state, _ in ready:
                        saved.pop(state.name, None)
                raise
            saves.upload = None
            if not counts:
                raise StaleLease(f"{named(batch)}: {_LOST}")
        return None

    def _copied(
        self, saves: _Saves, batch: SegmentBatch, ready: list[tuple[State, Any]], last: bool
    ) -> States | None:
        """Copy values to the block that is sent; return it once it is complete."""
        upload = saves.upload
        if upload is None:
            session = self._link.session_of(batch.partition)
            buffers = session.buffers if session.mapped.last else None
            upload = saves.upload = Upload(self._maker, batch.rows, buffers)
        for state, value in ready:
            upload.put(state, value)
        return States(*upload.finish()) if last else None

    def _ready(
        self, saved: Mapping[str, Any], batch: SegmentBatch, name: str, value: Any
    ) -> tuple[State, Any]:
        """Return a value in the form that is saved; ValueError or TypeError where it can not be."""
        state = self.layout.states.get(name)
        if state is None:
            raise unknown_state(name, self.layout.states)
        if name in saved:
            raise _saved_before(batch, state)
        own, wanted = self._framework, (batch.rows, *state.dims)
        if not self.kept:
            array = own.on_host(value, state.dtype, wanted)
            if array is not None:
                return state, array
        try:
            if self.kept and own.owns(value) and own.described(value) == (state.dtype, wanted):
                return state, self._usable(state, own, value)
            face, value = presented(state, value, batch.rows, own)
            return state, self._usable(state, face, value)
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
        unsaved = [shown for shown in every if names_of - shown[1].values.keys()]
        if not unsaved:
            return ""
        batch, saves = unsaved[0]
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


def _saved_before(batch: SegmentBatch, state: State) -> StateError:
    return StateError(
        f"state {state.name!r} of batch {batch.partition}/{batch.number} is saved already, "
        "and that stands"
    )
