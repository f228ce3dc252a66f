"""Reverb, a store of items that are inserted and sampled: W4 with the states updated, and W3.

An item never changes, so a state is updated by inserting the next segment with it:

    table, a queue [facts, x, states] ─► sample, 32 to a batch ─► a + 1, b + 2 ─► insert, flush
            ▲                                                                        │
            └──────────── next segments, or the first of other examples ◄────────────┘

The trainer cuts the segments itself and keeps the examples that are on their way.  One writer, one
flush a step: inserting item by item, or without flushing, took longer.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from . import by_hand, sequences, states
from .processes import helper, last_line
from .steps import LOADED, READY, Steps

_TABLE = "batches"
_IN_FLIGHT = 100  # samples on their way to the trainer


def serve_segments(directory: Path) -> None:
    import tensorflow as tf

    signature = {
        "key": tf.TensorSpec((), tf.string),
        "sequence": tf.TensorSpec((), tf.int64),
        "length": tf.TensorSpec((), tf.int64),
        "context": tf.TensorSpec((), tf.int64),
        "x": tf.TensorSpec((states.UNROLL, sequences.WIDTH), tf.float32),
        **{name: tf.TensorSpec((states.STATE_WIDTH,), tf.float32) for name in states.STATES},
    }
    del directory
    _serve(signature, 2 * states.CAPACITY)


def _serve(signature: dict[str, Any], size: int) -> None:
    import reverb
    from reverb.platform.checkpointers_lib import DefaultCheckpointer

    table = reverb.Table.queue(_TABLE, max_size=size, signature=signature)
    with tempfile.TemporaryDirectory() as unused:  # it would leave one behind
        server = reverb.Server([table], checkpointer=DefaultCheckpointer(unused))
        print(f"localhost:{server.port}", flush=True)
        sys.stdin.read()
        server.stop()


def _put(writer: Any, items: list[dict[str, Any]]) -> None:
    for item in items:
        writer.append(item)
        writer.create_item(_TABLE, 1.0, {name: writer.history[name][-1] for name in item})
    writer.flush()


def _sampled(address: str, in_flight: int) -> Any:
    import reverb

    return reverb.TrajectoryDataset.from_table_signature(
        address, _TABLE, max_in_flight_samples_per_worker=in_flight, num_workers_per_iterator=1
    ).map(lambda sample: sample.data)


class WrittenExamples:
    """Those on their way, and the segments of them."""

    def __init__(self, directory: Path) -> None:
        self._file = by_hand.Mapped(sequences.tfrecord_file(directory))
        self._rows = itertools.cycle(range(len(self._file)))
        self._steps: dict[bytes, np.ndarray] = {}

    def begun(self) -> dict[str, Any]:
        """The first segment of another one."""
        found = by_hand.features(self._file.messages([next(self._rows)])[0])
        key, x = bytes(found[b"key"]), np.frombuffer(found[b"x"], np.float32)
        self._steps[key] = x.reshape(-1, sequences.WIDTH)
        zeros = np.zeros(states.STATE_WIDTH, np.float32)
        return self._segment(key, 0, dict.fromkeys(states.STATES, zeros))

    def next(self, key: bytes, sequence: int, carried: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the item after a segment, with these states."""
        if (sequence + 1) * states.UNROLL < len(self._steps[key]):
            return self._segment(key, sequence + 1, carried)
        del self._steps[key]
        return self.begun()

    def _segment(self, key: bytes, sequence: int, carried: dict[str, np.ndarray]) -> dict[str, Any]:
        steps = self._steps[key]
        cut = steps[sequence * states.UNROLL :][: states.UNROLL]
        x = np.zeros((states.UNROLL, sequences.WIDTH), np.float32)
        x[: len(cut)] = cut
        facts = {"sequence": sequence, "length": len(cut), "context": len(steps)}
        numbers = {name: np.int64(value) for name, value in facts.items()}
        return {"key": key, **numbers, "x": x, **carried}


def segments(directory: Path) -> Steps:
    import reverb
    import tensorflow  # noqa: F401

    yield LOADED
    with helper("servers", "reverb-segments", str(directory)) as server:
        address = last_line(server)
        yield READY
        writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=1)
        examples = WrittenExamples(directory)
        for _ in range(0, states.CAPACITY, states.BATCH):
            _put(writer, [examples.begun() for _ in range(states.BATCH)])
        check, add = states.Check(), states.additions()
        for batch in _sampled(address, _IN_FLIGHT).batch(states.BATCH).prefetch(1):
            keys, sequence = batch["key"].numpy(), batch["sequence"].numpy()
            before = {name: batch[name] for name in states.STATES}
            if check.wanted:
                check(keys, sequence, batch["length"], batch["context"], batch["x"], before)
            after = {name: add[name](x=value).numpy() for name, value in before.items()}
            rows = enumerate(zip(keys.tolist(), sequence.tolist(), strict=True))
            _put(
                writer,
                [examples.next(*row, {name: after[name][i] for name in after}) for i, row in rows],
            )
            yield 1
