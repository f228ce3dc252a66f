"""W4 in the peers' hands, both in the trainer's process.

barrier   what the original is made of, which TensorFlow still has: a Barrier holds every segment
          until all its components are there, among them the states that a step before has saved.
          Threads of a queue runner cut examples into it, a step takes, trains and saves in one run.

    records ─► cut, pad ─► Barrier [keys × (facts, x, context, states)] ─► take 32 ─► a + 1, b + 2
                               ▲         capacity: a queue of tokens                      │
                               └───────────────── insert under next_key ◄─────────────────┘

windows   32 whole sequences of as many segments, padded, cut into windows by tf.data: all rows of
          a batch begin and end together, so states are one tensor each that is reset by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import sequences, states
from .steps import ENDED, LOADED, READY, Contestant, Steps

_THREADS = 3  # the original's default
_FACTS = ("next_key", "sequence", "length", "sequence_count", "total_length")


def _spec(tf: Any) -> dict[str, Any]:
    return {
        "key": tf.io.FixedLenFeature([], tf.string),
        "length": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenSequenceFeature([sequences.WIDTH], tf.float32, allow_missing=True),
    }


def _records(tf: Any, directory: Path) -> Any:
    file = sequences.tfrecord_file(directory)
    return tf.data.TFRecordDataset(file, buffer_size=8 * 1024 * 1024).repeat()


class _Barrier:
    """The ops of the original around one Barrier."""

    def __init__(self, tf: Any, names: Sequence[str]) -> None:
        self._tf = tf
        self._names = names
        self._types = {
            "next_key": (tf.string, ()),
            "sequence": (tf.int32, ()),
            "length": (tf.int32, ()),
            "sequence_count": (tf.int32, ()),
            "total_length": (tf.int32, ()),
            "x": (tf.float32, (states.UNROLL, sequences.WIDTH)),
            "context": (tf.int64, ()),
            **dict.fromkeys(names, (tf.float32, (states.STATE_WIDTH,))),
        }
        types, shapes = zip(*self._types.values(), strict=True)
        self._handle = tf.raw_ops.Barrier(component_types=types, shapes=shapes)
        self._tokens = tf.queue.FIFOQueue(states.CAPACITY, [tf.int32], [()])
        self.close = tf.raw_ops.BarrierClose(handle=self._handle, cancel_pending_enqueues=True)
        self.close_tokens = self._tokens.close(cancel_pending_enqueues=True)

    def _insert(self, name: str, keys: Any, values: Any) -> Any:
        index = list(self._types).index(name)
        return self._tf.raw_ops.BarrierInsertMany(
            handle=self._handle, keys=keys, values=values, component_index=index
        )

    def cut(self, example: dict[str, Any]) -> Any:
        """Add one example; its first segment is ready when there is a token for it."""
        tf, unroll = self._tf, states.UNROLL
        key, x = example["key"], example["x"]
        steps = tf.shape(x)[0]
        n = (steps + unroll - 1) // unroll
        padded = tf.pad(x, [[0, n * unroll - steps], [0, 0]])
        number = tf.range(n)
        of = tf.strings.as_string(n, width=5, fill="0")
        named = tf.strings.as_string(number, width=5, fill="0")
        keys = tf.strings.join([named, "_of_", of, ":", key])
        values = {
            "next_key": tf.concat([keys[1:], ["STOP:" + key]], 0),
            "sequence": number,
            "length": tf.clip_by_value(steps - number * unroll, 0, unroll),
            "sequence_count": tf.fill([n], n),
            "total_length": tf.fill([n], steps),
            "x": tf.reshape(padded, [n, unroll, sequences.WIDTH]),
            "context": tf.fill([n], example["length"]),
        }
        stored = [self._insert(name, keys, value) for name, value in values.items()]
        with tf.control_dependencies(stored):
            token = self._tokens.enqueue(0)
        with tf.control_dependencies([token]):
            zeros = tf.zeros([1, states.STATE_WIDTH])
            return tf.group(*(self._insert(name, keys[:1], zeros) for name in self._names))

    def step(self) -> tuple[dict[str, Any], Any]:
        """Return the results of a take, and the op that trains on it and saves."""
        tf = self._tf
        _, keys, values = tf.raw_ops.BarrierTakeMany(
            handle=self._handle,
            num_elements=states.BATCH,
            component_types=[kind for kind, _ in self._types.values()],
            allow_small_batch=True,
        )
        taken = {"key": keys, **dict(zip(self._types, values, strict=True))}
        for name, (_, shape) in self._types.items():
            taken[name].set_shape((None, *shape))
        goes_on = taken["sequence"] + 1 < taken["sequence_count"]
        rows = tf.reshape(tf.where(goes_on), [-1])
        ended = tf.size(goes_on) - tf.size(rows)
        next_key = tf.gather(taken["next_key"], rows)
        saves = [
            self._insert(name, next_key, tf.gather(taken[name] + states.STATES[name], rows))
            for name in self._names
        ]
        released = self._tokens.dequeue_many(ended)
        others = [taken[name] for name in (*_FACTS, "key", "x", "context")]
        return taken, tf.group(*saves, released, *others)


def barrier(names: Sequence[str] = tuple(states.STATES)) -> Contestant:
    """With these states."""

    def steps(directory: Path) -> Steps:
        import tensorflow as tf

        v1 = tf.compat.v1
        yield LOADED
        with tf.Graph().as_default(), v1.Session() as session:
            spec = _spec(tf)
            parsed = _records(tf, directory).map(
                lambda record: tf.io.parse_single_example(record, spec), tf.data.AUTOTUNE
            )
            source = v1.data.make_one_shot_iterator(parsed.prefetch(tf.data.AUTOTUNE))
            saver = _Barrier(tf, names)
            inserts = [saver.cut(source.get_next())] * _THREADS
            taken, step = saver.step()
            yield READY
            closed = tf.group(saver.close, saver.close_tokens)
            runner = v1.train.QueueRunner(
                saver._tokens,
                inserts,
                close_op=closed,
                cancel_op=closed,
                queue_closed_exception_types=(tf.errors.OutOfRangeError, tf.errors.CancelledError),
            )
            coordinator = v1.train.Coordinator()
            threads = runner.create_threads(session, coordinator, daemon=True, start=True)
            try:
                check = states.Check()
                while check.wanted:
                    got, _ = session.run([taken, step])
                    keys = [key.split(b":", 1)[1] for key in got["key"].tolist()]
                    carried = {name: got[name] for name in names}
                    check(keys, got["sequence"], got["length"], got["context"], got["x"], carried)
                    yield 1
                run = session.make_callable(step)
                while not coordinator.should_stop():
                    run()
                    yield 1
                coordinator.join(threads)
                yield ENDED
            finally:
                coordinator.request_stop()  # the runner then closes the barrier, in its own thread
                coordinator.join(threads)

    return steps


def _windows_dataset(tf: Any, directory: Path) -> Any:
    length, whole, unroll = (
        {"length": tf.io.FixedLenFeature([], tf.int64)},
        _spec(tf),
        states.UNROLL,
    )
    bounds = [n * unroll + 1 for n in range(1, sequences.LONGEST // unroll)]

    def windows(records: Any) -> Any:
        rows = tf.io.parse_example(records, whole)
        total, x = tf.cast(rows["length"], tf.int32), rows["x"]
        steps = tf.shape(x)[1]
        n = (steps + unroll - 1) // unroll
        x = tf.pad(x, [[0, 0], [0, n * unroll - steps], [0, 0]])
        x = tf.reshape(x, [states.BATCH, n, unroll, sequences.WIDTH])
        number = tf.range(n)
        cut = tf.data.Dataset.from_tensor_slices(
            {
                "sequence": number,
                "length": tf.clip_by_value(total[None] - number[:, None] * unroll, 0, unroll),
                "x": tf.transpose(x, [1, 0, 2, 3]),
            }
        )
        same = {"key": rows["key"], "context": rows["length"]}
        return cut.map(lambda window: {**window, **same})

    return (
        _records(tf, directory)
        .batch(states.BATCH)
        .map(lambda r: (r, tf.io.parse_example(r, length)["length"]), tf.data.AUTOTUNE)
        .unbatch()
        .bucket_by_sequence_length(
            lambda _, steps: tf.cast(steps, tf.int32), bounds, [states.BATCH] * (len(bounds) + 1)
        )
        .flat_map(lambda r, _: windows(r))
        .prefetch(tf.data.AUTOTUNE)
    )


def windows(directory: Path) -> Steps:
    import tensorflow as tf

    yield LOADED
    yield READY
    check, add = states.Check(), states.additions()
    carried: dict[str, Any] = {}
    for batch in _windows_dataset(tf, directory):
        sequence = int(batch["sequence"])
        if sequence == 0:
            zeros = tf.zeros([states.BATCH, states.STATE_WIDTH])
            carried = dict.fromkeys(states.STATES, zeros)
        if check.wanted:
            check(
                batch["key"].numpy(),
                [sequence] * states.BATCH,
                batch["length"],
                batch["context"],
                batch["x"],
                carried,
            )
        carried = {name: add[name](x=value) for name, value in carried.items()}
        yield 1
    yield ENDED
