"""A feed as a ``tf.data.Dataset``.

    runs ──► batches ──► elements    of a graph: one call of Python for each batch, or for several
    batch ──► elements               of a loop in Python over the dataset itself

A loop in Python over this dataset uses only tensors of TensorFlow: its iterator takes each batch
from the feed.  It is also an iterator of TensorFlow, so a graph that gets it as an argument pulls
elements from the graph of the dataset.

The dataset yields a number for each iterator of TensorFlow, and again where the feed was taken back
to a snapshot.

The map functions run in the thread that pulls (``use_inter_op_parallelism=False``, which only the
raw operation offers): handing such small work to a pool of threads costs more than the work.

Small batches come together: a call of Python takes those that are here, and the graph separates
their copies.  Taking a batch must not commit the one before, so this needs explicit commits.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from headrace_proto.dtypes import BYTES
from headrace_proto.schema import OFFSETS, RESERVED, Field
from headrace_proto.segment_layout import GROUPS

from .batches.batch import Batch
from .batches.segments import FLAGS, SEGMENT_FACTS, SegmentBatch
from .batches.taken import DatasetRun

#: Maximum number of batches that a call of Python takes, and of their bytes: two copies of 128 KiB
#: take half as long as a call.
_TOGETHER, _TOGETHER_BYTES = 8, 1 << 20


class Runs:
    """The iterations over one dataset of a feed, from threads of TensorFlow."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._runs: dict[int, tuple[DatasetRun, Iterator[Any]]] = {}
        self._numbers = itertools.count()

    def begun(self) -> Iterator[int]:
        """Begin an iteration; yield its number for ``next_batch``, again after a rewind."""
        run, number = DatasetRun(), next(self._numbers)
        try:
            while not run.ended:
                self._runs[number] = run, self._feed._begin_run(run)
                yield number
        finally:
            self._runs.pop(number, None)
            run.closed = True

    def next_batch(self, number: int) -> Any:
        """Return the next batch; StopIteration where the iteration has ended, or begins anew."""
        return self._feed._next_of(*self._runs[number])

    def together(self, number: int, arrays: Callable[[Any], list[Any]]) -> list[Any]:
        """Return the arrays of the next batch, and of small ones that are here, stacked by column.

        An error of a later batch waits until the ones before it are yielded.
        """
        run, _ = self._runs[number]
        if run.late is not None:
            late, run.late = run.late, None
            raise late
        batch = self.next_batch(number)
        found, room = [arrays(batch)], _TOGETHER_BYTES - batch.nbytes
        try:
            while len(found) < _TOGETHER and self._feed._follows(batch, room):
                batch = self.next_batch(number)
                found.append(arrays(batch))
                room -= batch.nbytes
        except Exception as error:
            run.late = error
        if len(found) == 1:
            return [array[None] for array in found[0]]
        return [np.stack(column) for column in zip(*found, strict=True)]

    def batches(self) -> Iterator[Any]:
        """Yield the batches of an iteration."""
        for number in self.begun():
            while True:
                try:
                    batch = self.next_batch(number)
                except StopIteration:
                    break
                yield batch


def dataset(feed: Any, facts: Sequence[str], tokens: bool = False) -> Any:
    """Return a ``tf.data.Dataset`` of the rest of a feed.

    It gets arrays, not tensors: TensorFlow takes aligned arrays without a copy, but converts
    tensors to arrays first.
    """
    segmented = feed._segments is not None
    form = _of_segments(feed) if segmented else _of_rows(feed, facts, tokens)
    spec, arrays, iterations = form.spec, form.arrays, Runs(feed)
    together = feed._by_name and _nbytes(spec) * _TOGETHER <= _TOGETHER_BYTES
    if together:
        spec = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape], one.dtype), spec)
    flat = tf.nest.flatten(spec)

    def called(number: Any) -> list[Any]:
        if together:
            return iterations.together(int(number), arrays)
        return arrays(iterations.next_batch(int(number)))

    def element(number: Any) -> Any:
        tensors = tf.numpy_function(called, [number], [one.dtype for one in flat])
        for tensor, one in zip(tensors, flat, strict=True):
            tensor.set_shape(one.shape)
        return tensors

    def elements(number: Any) -> Any:
        data = _mapped(tf.data.Dataset.from_tensors(number).repeat(), element, spec)
        if together:  # with the names of form.spec, which unbatch drops
            variant = tf.data.experimental.to_variant(data.unbatch())
            data = tf.data.experimental.from_variant(variant, form.spec)
        return data

    runs = tf.data.Dataset.from_generator(
        iterations.begun, output_signature=tf.TensorSpec((), tf.int64)
    )
    options = tf.data.Options()
    # Else TensorFlow would prefetch batches, which commits the ones before, or blocks sequences
    # whose states are saved later.  Batches that come together are here: a thread that prefetches
    # them only competes with the loop for the interpreter.
    ahead = feed._by_name and not together
    options.experimental_optimization.inject_prefetch = ahead
    options.experimental_optimization.map_parallelization = ahead
    data = runs.flat_map(tf.autograph.experimental.do_not_convert(elements))
    if form.ragged:
        data = data.map(tf.autograph.experimental.do_not_convert(_joined))
    return _FeedDataset(data.with_options(options), feed, form.tensors)


class _FeedDataset(tf.data.Dataset):  # type: ignore[misc]
    """A dataset in a graph, over which Python iterates without it."""

    def __init__(self, graph: Any, feed: Any, element: Callable[[Batch], dict[str, Any]]) -> None:
        self._in_graph, self._feed, self._element = graph, feed, element
        super().__init__(tf.data.experimental.to_variant(graph))

    def _inputs(self) -> list[Any]:
        return [self._in_graph]

    @property
    def element_spec(self) -> Any:
        return self._in_graph.element_spec

    def __iter__(self) -> Any:
        return _Elements(self) if tf.executing_eagerly() else super().__iter__()


class _Elements(tf.data.IteratorSpec(tf.TensorSpec(())).value_type):  # type: ignore[misc]
    """An iterator of TensorFlow that Python asks for elements, in any of its threads."""

    def __init__(self, dataset: _FeedDataset) -> None:
        super().__init__(dataset)
        self._lock = threading.Lock()
        self._elements = map(dataset._element, Runs(dataset._feed).batches())

    def __next__(self) -> Any:
        if not tf.executing_eagerly():
            return super().__next__()
        with self._lock:
            try:
                return next(self._elements)
            except (StopIteration, tf.errors.OpError):
                raise
            except Exception as error:  # raised as the graph would raise it
                wrong = isinstance(error, (TypeError, ValueError))
                kind = tf.errors.InvalidArgumentError if wrong else tf.errors.UnknownError
                raise kind(None, None, f"{type(error).__name__}: {error}") from error

    def get_next(self) -> Any:
        if not tf.executing_eagerly():
            return super().get_next()
        try:
            return next(self)
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None


def _joined(element: dict[str, Any]) -> dict[str, Any]:
    """Return an element with its ragged columns put together."""
    return {
        name: tf.RaggedTensor.from_row_splits(value, element[OFFSETS + name], validate=False)
        if OFFSETS + name in element
        else value
        for name, value in element.items()
        if not name.startswith(OFFSETS)
    }


def _mapped(data: Any, function: Callable[..., Any], spec: Any) -> Any:
    """Map in the thread that pulls elements.  The function gets and returns flat tensors.

    OutOfRange, TensorFlow's form of Python's StopIteration, ends the dataset.
    """
    signature = tf.nest.flatten(data.element_spec)
    traced = tf.function(function, autograph=False, input_signature=signature)
    concrete = traced.get_concrete_function()
    wanted = tf.nest.flatten(spec)
    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(data),
        other_arguments=concrete.captured_inputs,
        f=concrete,
        output_types=[one.dtype for one in wanted],
        output_shapes=[one.shape for one in wanted],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
        force_synchronous=True,
    )
    return tf.data.experimental.from_variant(variant, spec)


class Elements(NamedTuple):
    """The form of a feed's batches in a dataset."""

    spec: dict[str, Any]
    #: The arrays of a batch, as TensorFlow takes them: aligned ones without a copy.
    arrays: Callable[[Any], list[Any]]
    #: The tensors of a batch.
    tensors: Callable[[Any], dict[str, Any]]
    #: Whether a ragged column is two tensors of the spec, its values and its offsets.
    ragged: bool = False


def _spec(schema: Mapping[str, Field]) -> dict[str, Any]:
    """Return the TensorSpecs of the columns of a batch as they lie in memory."""
    return {
        name: tf.TensorSpec(field.shape, tf.string if field.dtype == BYTES else field.dtype, name)
        for name, field in schema.items()
    }


def _nbytes(spec: Mapping[str, Any]) -> float:
    """Return the bytes of a batch without its strings; infinity where shapes vary."""
    every = tf.nest.flatten(spec)
    varies = not all(one.shape.is_fully_defined() for one in every)
    return math.inf if varies else sum(math.prod(one.shape) * one.dtype.size for one in every)


def _of_rows(feed: Any, facts: Sequence[str], tokens: bool) -> Elements:
    flat = [*feed.schema]
    layout = feed._layout
    offsets = [OFFSETS + name for name, field in feed.schema.items() if field.ragged]
    columns = {name: name for name in flat}
    columns |= {name: RESERVED + name for name in facts} | {name: name for name in offsets}
    spec = _spec({name: layout[column] for name, column in columns.items()})
    if tokens:
        spec |= _spec({"token": Field("int64")})
    in_order = [columns.get(name) for name in sorted(spec)]  # as tf.nest flattens a dict

    def arrays(batch: Batch) -> list[Any]:
        return [np.int64(batch.token) if name is None else batch.array(name) for name in in_order]

    def tensors(batch: Batch) -> dict[str, Any]:
        found = {name: batch[name] for name in flat}
        found |= {name: getattr(batch, name) for name in facts}
        return found | {"token": tf.constant(batch.token, tf.int64)} if tokens else found

    return Elements(spec, arrays, tensors, bool(offsets))


def _of_segments(feed: Any) -> Elements:
    layout = feed.facts
    rows = layout["length"].shape[0]
    facts = {name: layout[name] for name in SEGMENT_FACTS if name in layout}
    groups: dict[str, dict[str, Field]] = {group: {} for group in GROUPS}
    for name, field in feed.schema.items():
        group, _, inner = name.partition(":")
        groups.setdefault(group, {})[inner] = field
    spec = _spec({"token": Field("int64"), **facts})
    spec.update(dict.fromkeys(FLAGS, tf.TensorSpec((rows,), tf.bool)))
    spec.update({group: _spec(fields) for group, fields in groups.items()})

    def arrays(batch: SegmentBatch) -> list[Any]:
        flat: list[Any] = tf.nest.flatten(batch.arrays())
        return flat

    def tensors(batch: SegmentBatch) -> dict[str, Any]:
        found = {"token": tf.constant(batch.token, tf.int64)}
        found |= {name: getattr(batch, name) for name in [*facts, *FLAGS]}
        return found | {
            group: {name: batch._column(f"{group}:{name}") for name in fields}
            for group, fields in groups.items()
        }

    return Elements(spec, arrays, tensors)
