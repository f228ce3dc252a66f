"""The part of the builder that cuts sequences into segments and keeps their states.

    example  "u1", 7 steps            num_unroll=3
        ─► segment 0 of 3   steps 0 1 2   with the initial states
        ─► segment 1 of 3   steps 3 4 5   with the states saved for segment 0
        ─► segment 2 of 3   step  6 + pad with the states saved for segment 1

A batch is ``batch_size`` segments, each of another example.  Names, order and defaults of
arguments are those of the TensorFlow functions, less those that named graph nodes or counted
threads.  Both calls declare the same shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from .sampler_steps import Sampling
from .segment_options import segmented
from .selectors import Value
from .signatures import checking
from .steps import SEQUENCES

#: Columns of a batch: their names, or by the names that they have in it.
Columns = Sequence[str] | Mapping[str, str]
#: Arguments that must be given, though one with a default stands before them.
_NEEDED: Any = ...


class Sequencing(Sampling):
    """Shapes of segments that follow one another with saved states."""

    @checking
    def batch_sequences_with_states(
        self,
        input_key: str,
        input_sequences: Columns,
        input_context: Columns,
        input_length: Value | None = None,
        initial_states: Mapping[str, Any] = _NEEDED,
        num_unroll: int = _NEEDED,
        batch_size: int = _NEEDED,
        capacity: int | None = 1000,
        allow_small_batch: bool = True,
        pad: bool = True,
        make_keys_unique: bool = False,
        make_keys_unique_seed: int | None = None,
        *,
        order: Literal["arrival", "lanes"] = "arrival",
        state_placement: Literal["server", "trainer"] = "server",
        stride: int | None = None,
        left: int = 0,
        right: int = 0,
        phase: Literal["random"] | None = None,
        phase_seed: int | None = None,
    ) -> Self:
        """Batches of segments of ``num_unroll`` steps, each with the states saved for the one
        before it.  Only ``input_length`` and what follows ``batch_size`` may be left out.

        ``input_key`` is a column of one string, unique among the examples in flight;
        ``make_keys_unique`` appends a number to it, drawn from ``make_keys_unique_seed`` (None: 0).
        ``input_sequences`` are columns ``[T, …]`` of equal T, ``input_context`` columns that every
        segment repeats: lists of columns, or dicts of the name in the batch to the column.
        ``input_length`` gives an example's steps before padding: a column of integers, a sequence
        whose steps count, or a function; None: T.

        ``initial_states`` is a dict of name to ``zeros(shape, dtype)``, a constant, or the name of
        a column in which each example brings its own.  A constant has its numpy dtype: Python
        floats are float64, ints int64.  Strings in a list are a constant of dtype bytes, a str is a
        column's name.  ``final_state`` and ``from_pool`` start an example where others ended.  With
        ``order="lanes"`` it may be ``{}``, for models that keep their states themselves: then
        batches are committed and prefetched like plain ones.

        A partition has at most ``capacity`` examples in flight (None: any number).  When the source
        ends, ``allow_small_batch`` finishes every example in smaller batches; without it segments
        that fill no batch are dropped and counted.  ``pad`` fills up the last segment; without it T
        must be a multiple of ``num_unroll``, and ``input_length`` must be given.

        With ``order="arrival"`` the oldest examples come first, and rows move up when one ends.
        With ``"lanes"`` a row stays with its example to the end and then takes the next, so with
        ``state_placement="trainer"`` states can stay in the trainer's memory.

        Segment k begins at step k·``stride`` (None: ``num_unroll``, at most that), with the state
        before that step.  ``left`` and ``right`` steps of context stand before and after its own
        ``num_unroll`` in ``sequences``; ``left_length`` and ``right_length`` count the real ones.
        With ``phase="random"`` the first segment has 1 … ``stride`` steps, drawn anew for each
        example and epoch from ``phase_seed`` (None: 0), and its successor begins after them.
        """
        return self._in_segments(vars())

    @checking
    def sequence_queueing_state_saver(
        self,
        batch_size: int,
        num_unroll: int,
        input_length: Value,
        input_key: str,
        input_sequences: Columns,
        input_context: Columns,
        initial_states: Mapping[str, Any],
        capacity: int | None = None,
        allow_small_batch: bool = False,
        *,
        order: Literal["arrival", "lanes"] = "arrival",
        state_placement: Literal["server", "trainer"] = "server",
        stride: int | None = None,
        left: int = 0,
        right: int = 0,
    ) -> Self:
        """Like ``batch_sequences_with_states``, of sequences that need no padding.

        Every T is a multiple of ``num_unroll``, or ``num_unroll`` plus a multiple of ``stride``;
        ``input_length`` is the number of steps to use.
        """
        return self._in_segments(vars() | {"pad": False})

    def _in_segments(self, given: dict[str, Any]) -> Self:
        every = inspect.signature(Sequencing.batch_sequences_with_states).parameters
        given = {name: given.get(name, argument.default) for name, argument in every.items()}
        needed = ("initial_states", "num_unroll", "batch_size")
        if missing := [name for name in needed if given[name] is _NEEDED]:
            raise TypeError(f"batch_sequences_with_states() lacks {', '.join(missing)}")
        return self._with_shape(SEQUENCES, segmented(given, self.fields))
