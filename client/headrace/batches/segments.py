"""A batch of segments in a trainer's hands: each row one slice of another example.

    key "00001_of_00003:patient-12"   sequence 1 of sequence_count 3   next_key "00002_of_…"
    sequences[name] [B, num_unroll, …]   context[name] [B, …]   state(name) [B, …]
                                                                   │
                                     train ── save_state(name) ◄───┘   the last one commits

Every array is made when it is first asked for, and kept.  Arrays are views of memory that the batch
shares with the server, as those of any batch.

A ``tf.function`` takes a batch apart by TensorFlow's protocol of nested values, so it is traced
once for all batches of one shape, and not once per batch:

    step(batch) ─► __tf_flatten__ ─► one tensor per column ─► __tf_unflatten__ ─► TracedBatch
                   (each call)       (placeholders in the trace)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np

from headrace_proto.errors import near
from headrace_proto.schema import FACTS, RESERVED, Field
from headrace_proto.segment_layout import STARTS, SegmentLayout

from ..connection.state_block import unknown_state
from .batch import BatchInHand

#: The reason why a batch with states has no commit of its own.
BY_STATES = "a batch of segments with states is committed by the save of its last state"


#: Flags of the rows.
FLAGS = ("first", "last", "valid")
#: Facts of the rows in an element of ``as_dataset``, beside the flags.
SEGMENT_FACTS = (
    *("key", "sequence", "sequence_count", "length", "total_length", "insertion_index"),
    *("left_length", "right_length"),  # only where there is context
    *("segment_ids", "positions", "resets"),  # only with pack=True
    "lane",  # only with order="lanes"
    *(name for name in FACTS if name != "length"),  # only where a stage adds them
)


class SegmentBatch(BatchInHand):
    """Rows of sequences, each with the state that its sequence has reached.

    It is committed by the save of its last state.  Asking for the next batch commits nothing, and
    several batches may be in hand at once.  Where the feed has no states it is committed like a
    plain batch.  ``rows`` and ``batch_size`` are its number of rows; ``partition`` and ``number``
    are its place in the stream; ``feed.save_states`` takes its ``token``.  ``epoch`` is that of its
    first row, from 0.
    """

    _layout: SegmentLayout
    _saving: Any = None  # of a feed with states
    _saves: Any  # those of this batch

    # Rows

    @property
    def batch_size(self) -> Any:
        """Its number of rows, as ``rows``."""
        return self.rows

    @property
    def key(self) -> Any:
        """Each row's own name: which segment, of how many, of which example.

        Of packed rows it is ``original_key``.
        """
        return self.original_key if self._layout.packed else self._strings("key")

    @property
    def next_key(self) -> Any:
        """The key of the segment after each row; ``STOP:`` and the example's where it ends."""
        self._check_alone("next_key")
        return self._strings("next_key")

    @property
    def original_key(self) -> Any:
        """The example's own key, as the source has it: ``key`` without the segment's number."""
        return self._column("@key")

    @property
    def sequence(self) -> Any:
        """Which segment of its example each row is, from 0."""
        self._check_alone("sequence")
        return self._column("@sequence")

    @property
    def sequence_count(self) -> Any:
        """How many segments each row's example has."""
        self._check_alone("sequence_count")
        return self._column("@sequence_count")

    def _check_alone(self, name: str) -> None:
        if self._layout.packed:
            raise AttributeError(
                f"batch.{name}: a row of this feed has several examples, it is declared with "
                "pack=True; batch.positions tells where in its example each step is"
            )

    @property
    def segment_ids(self) -> Any:
        """``[B, num_unroll]``: which example of its row each step is of, from 1; 0 is padding.

        AttributeError without ``pack=True``.
        """
        return self._of_packed("@segment_ids")

    @property
    def positions(self) -> Any:
        """``[B, num_unroll]``: where in its example each step is, from 0, with ``pack=True``."""
        return self._of_packed("@positions")

    @property
    def resets(self) -> Any:
        """``[B, num_unroll]``: whether each step is the first of its example, with ``pack=True``.

        There the model has ``initial_state(name)``, not the state after the step before.
        """
        return self._of_packed("@resets")

    def _of_packed(self, name: str) -> Any:
        if not self._layout.packed:
            raise AttributeError(
                f"batch.{name[1:]}: a row of this feed has one example; it is not declared with "
                "order='lanes', pack=True"
            )
        return self._column(name)

    @property
    def length(self) -> Any:
        """How many of each segment's ``num_unroll`` steps are data and not padding."""
        return self._column("@length")

    @property
    def left_length(self) -> Any:
        """How many steps of the context before each segment are data.  They end where it begins."""
        return self._context_fact("left_length")

    @property
    def right_length(self) -> Any:
        """How many steps of the context after each segment are data."""
        return self._context_fact("right_length")

    def _context_fact(self, name: str) -> Any:
        if RESERVED + name not in self._layout.schema:  # declared with left=0, or right=0
            return self.sequence * 0
        return self._column(RESERVED + name)

    @property
    def total_length(self) -> Any:
        """How many steps each row's whole example has."""
        return self._column("@total_length")

    @property
    def insertion_index(self) -> Any:
        """When each row's example came in: smaller is earlier, in one partition."""
        return self._column("@insertion_index")

    @property
    def lane(self) -> Any:
        """The number of each row's lane, of ``feed.lanes``: a sequence keeps it to its end.

        AttributeError in the order of arrival.
        """
        if not self._layout.lanes:
            raise AttributeError(
                "batch.lane: rows of this feed have no place, it is declared with order='arrival'"
            )
        return self._derived("lane") if self._layout.ranked else self._column("@lane")

    @property
    def first(self) -> Any:
        """Whether each row is the first segment of its example."""
        return self._derived("first")

    @property
    def last(self) -> Any:
        """Whether each row is the last segment of its example."""
        return self._derived("last")

    @property
    def valid(self) -> Any:
        """Whether each row holds a segment.

        All do but the empty rows of ranks in step: these have length 0, key ``b""`` and zeros (or
        ``padding_values``), and a state that is saved for one is ignored.  A masked loss counts the
        others alone.
        """
        return self._derived("valid")

    # Columns
    # With pack=True context, facts, keys, total_length and insertion_index are [B, most examples of
    # a row, …]: batch.context[name][row, segment_id - 1].

    @property
    def sequences(self) -> Mapping[str, Any]:
        """By name ``[batch_size, left + num_unroll + right, …]``."""
        return Columns(self, "sequences")

    @property
    def context(self) -> Mapping[str, Any]:
        """By name ``[batch_size, …]``: the same in all segments of an example."""
        return Columns(self, "context")

    def __getitem__(self, name: object) -> NoReturn:
        raise TypeError(
            f"a batch of segments has no [{name!r}]: its columns are in batch.sequences and "
            "batch.context, its states are batch.state(name)"
        )

    def state(self, name: str) -> Any:
        """``[batch_size, …]``: what was saved after the segment before, or the initial state.

        Of a packed row it is the state before its first step.
        """
        try:
            return self._column("state:" + name)
        except (KeyError, TypeError):
            raise unknown_state(name, self._layout.states) from None

    def initial_state(self, name: str) -> Any:
        """``[1, …]``: the state with which examples begin, at ``resets``, with ``pack=True``."""
        if not isinstance(name, str) or name not in self._layout.states:
            raise unknown_state(name, self._layout.states)
        if not self._layout.packed:
            raise AttributeError(
                "batch.initial_state: batch.state(name) has it where an example begins, in a feed "
                "that is not declared with pack=True"
            )
        return self._column("initial:" + name)

    def save_state(self, name: str, value: Any) -> Any:
        """Save a state as it is after these segments; saving the last one commits the batch.

        ``value`` may be a tensor of the feed's framework, an array or nested lists, of the state's
        dtype and shape.  It is checked and copied at once; if the server refuses it, a later step
        or ``close`` raises the error.  Where states stay with the trainer it is not copied: do not
        write into it afterwards.

        In a ``tf.function`` it returns the operation that does so once per call.
        """
        if (saving := self._saving) is None:
            raise unknown_state(name, self._layout.states)
        try:
            values = {name: value}
        except TypeError:
            raise unknown_state(name, self._layout.states) from None
        return saving.save(self, values)

    def commit(self) -> None:
        """Commit this batch, as ``feed.commit(batch)`` does, where the feed has no states."""
        if self._saving is not None:
            raise ValueError(f"batch.commit(): {BY_STATES}")
        super().commit()

    def _changed(self, change: Callable[[Any], Any]) -> Self:
        other = super()._changed(change)
        for name in [*FLAGS, *["lane"] * self._layout.ranked]:
            other._cache[name] = change(self._derived(name))
        return other

    def __reduce__(self) -> str:
        raise TypeError(
            "a batch of segments cannot be pickled: its states are saved where it was taken; "
            "batch.arrays() is plain data"
        )

    def keys(self) -> list[Any]:
        """Return the segments' keys as a list; of packed rows a list for each row."""
        return self._key_list(0)

    def arrays(self) -> dict[str, Any]:
        """Return the whole batch as numpy arrays, as an element of ``as_dataset``."""
        names = [RESERVED + name for name in SEGMENT_FACTS[1:]]
        facts = {name[1:]: self.array(name) for name in names if name in self._layout.schema}
        if "lane" in facts and self._layout.ranked:
            facts["lane"] = self._derived_array("lane")
        keys = self.array("@key") if self._layout.packed else self._key_array(0)
        flags = {name: self._derived_array(name) for name in FLAGS}
        element: dict[str, Any] = {"token": np.int64(self.token), "key": keys, **facts, **flags}
        for group in self._layout.groups:
            names = self._layout.names(group)
            element[group] = {name: self.array(f"{group}:{name}") for name in names}
        return element

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the layout that all batches of the feed share, then token and columns of this one.

        A function is traced again for another feed.  The layout does not keep the feed alive:
        functions that were traced with it live longer.
        """
        framework = self._framework.name
        if framework not in ("tf", "numpy"):
            raise TypeError(
                f"a batch of a feed with framework={framework!r} is no argument of a tf.function: "
                'connect with framework="tf"'
            )
        names = _columns_of(self._layout)
        columns = (self.lane if name == "@lane" else self._column(name) for name in names)
        return self._layout, (np.array(self.token, np.int64), *columns)

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: tuple[Any, ...]) -> Any:
        """Return the batch that a traced function gets."""
        return TracedBatch(metadata, components)

    # Inside

    def _strings(self, name: str) -> Any:
        value = self._cache.get(name)
        if value is None:
            keys = self._key_array(1 if name == "next_key" else 0)
            value = self._cache[name] = self._framework.strings(keys)
        return value

    def _key_array(self, ahead: int) -> np.ndarray:
        keys = np.empty(self.rows, object)
        keys[:] = self._key_list(ahead)
        return keys

    def _key_list(self, ahead: int) -> list[Any]:
        if self._layout.packed:
            own: list[Any] = self.array("@key").tolist()
            return own
        numbers = self.array("@sequence").tolist()
        counts = self.array("@sequence_count").tolist()
        return segment_keys(self.array("@key").tolist(), numbers, counts, ahead)

    def _derived(self, name: str) -> Any:
        """Return flags of the rows, or the lanes of a rank."""
        value = self._cache.get(name)
        if value is None:
            array = self._derived_array(name)
            value = self._cache[name] = self._framework.numbers(array, array.dtype.name)
        return value

    def _derived_array(self, name: str) -> np.ndarray:
        if name == "lane":  # numbered in all partitions: a rank has some in each
            lanes: np.ndarray = self.array("@lane")
            return lanes + np.int32(self.partition * self._layout.batch_size)
        flags: np.ndarray = self._flags(name, self.array)
        return flags

    def _flags(self, name: str, column: Callable[[str], Any]) -> Any:
        """Return one of ``FLAGS``, by arrays, or in a traced function by tensors."""
        if self._layout.packed:
            return column("@length") > 0 if name == "valid" else column(RESERVED + name)
        sequence, count = column("@sequence"), column("@sequence_count")
        if name == "last":
            return sequence + 1 == count
        return (sequence == 0) & (count > 0) if name == "first" else count > 0

    def _goes_on(self) -> np.ndarray:
        """Return whether the example at the end of each row has more segments."""
        if self._layout.packed:
            more: np.ndarray = (self.array("@length") > 0) & ~self.array("@last")
        else:
            more = self.array("@sequence") + 1 < self.array("@sequence_count")
        return more

    def _shape(self, group: str, name: str) -> Field:
        if group == "state":
            state = self._layout.states[name]
            return Field(state.dtype, (self.rows, *state.dims))
        slot = self._slots[f"{group}:{name}"]
        return Field(slot.dtype, slot.shape)

    def __repr__(self) -> str:
        groups = []
        layout = self._layout
        for group in layout.groups:
            shapes = [f"{name}: {self._shape(group, name)}" for name in layout.names(group)]
            if shapes:
                groups.append(f"{group} {', '.join(shapes)}")
        return (
            f"<SegmentBatch {self.partition}/{self.number} of {self.rows} segments of "
            f"{self._layout.num_unroll} steps: {'; '.join(groups)}>"
        )


def _columns_of(layout: SegmentLayout) -> list[str]:
    return [name for name in layout.schema if name not in STARTS]


class TracedBatch(SegmentBatch):
    """A batch inside a ``tf.function``: tensors in place of arrays, else as ``SegmentBatch``."""

    def __init__(self, layout: SegmentLayout, components: tuple[Any, ...]) -> None:
        self._layout = layout
        self.token, *columns = components
        self._cache = self._slots = dict(zip(_columns_of(layout), columns, strict=True))

    def save_state(self, name: str, value: Any) -> Any:
        if not isinstance(name, str):
            raise unknown_state(name, self._layout.states)
        from .traced import save_op

        return save_op(self._layout, self.token, {name: value}, self._cache["@key"].shape[:1])

    def array(self, name: str) -> np.ndarray:
        raise TypeError(
            "inside a tf.function a batch has no arrays: use its tensors (batch.sequences, "
            "batch.context, batch.state(name), batch.length …)"
        )

    def _changed(self, change: Any) -> Self:
        raise TypeError("inside a tf.function a batch stays where it is: move its tensors")

    def _strings(self, name: str) -> Any:
        from .traced import keys, next_keys

        made = next_keys if name == "next_key" else keys
        return made(self.original_key, self.sequence, self.sequence_count)

    def _derived(self, name: str) -> Any:
        return self._cache["@lane"] if name == "lane" else self._flags(name, self._column)

    def __getattr__(self, name: str) -> Any:
        if name == "rows":
            from .traced import rows_of

            return rows_of(self._cache["@key"])
        raise AttributeError(
            f"batch.{name}: a batch inside a tf.function has its rows' tensors and no more"
        )

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._layout, (self.token, *(self._cache[n] for n in _columns_of(self._layout)))

    def __repr__(self) -> str:
        groups = (f"{name}: {value.shape}" for name, value in self._cache.items())
        return f"<TracedBatch {'; '.join(groups)}>"


class Columns(Mapping[str, Any]):
    """The sequences, or the context, of a batch by name."""

    __slots__ = ("_batch", "_group")

    def __init__(self, batch: SegmentBatch, group: str) -> None:
        self._batch = batch
        self._group = group

    def __getitem__(self, name: str) -> Any:
        try:
            return self._batch._column(f"{self._group}:{name}")
        except KeyError:
            known = list(self)
        what = f"{name!r} is not in the {self._group} of this batch; there is {known}"
        raise KeyError(what + near(name, known))

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch._layout.names(self._group))

    def __len__(self) -> int:
        return len(self._batch._layout.names(self._group))

    def __contains__(self, name: object) -> bool:
        return f"{self._group}:{name}" in self._batch._layout.schema

    def __repr__(self) -> str:
        return f"<{self._group} of {self._batch!r}>"


def segment_keys(
    originals: Sequence[bytes], numbers: Sequence[int], counts: Sequence[int], ahead: int = 0
) -> list[bytes]:
    return [
        b"%05d_of_%05d:%s" % (n + ahead, count, key)
        if n + ahead < count
        else b"STOP:" + key
        if count
        else b""
        for n, count, key in zip(numbers, counts, originals, strict=True)
    ]


def is_tracing() -> bool:
    """Return whether TensorFlow is building a graph in this thread."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and not tf.executing_eagerly()
