"""TensorFlow works on the memory of the batches, and as a dataset."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .serving import connect, serving
from .streams import NUMERIC, every_dtype

pytestmark = pytest.mark.tf


def address_of(tensor: Any) -> int:
    """Return the address of a tensor's buffer, as numpy sees it without a copy."""
    return int(np.frombuffer(memoryview(tensor), np.uint8).ctypes.data)


def is_in_a_segment(address: int) -> bool:
    """Return whether a mapping of shared memory holds the address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, *_, path = line.rstrip("\n").split(" ")
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address < end:
                return "/slab-" in path
    return False


def numbered(n: int, batch_size: int = 4, smaller: bool = False) -> hs.Pipeline:
    rows = [{"i": i, "x": np.full(8, i, np.float32), "name": f"n{i}"} for i in range(n)]
    return hs.from_examples(rows).batch(batch_size, allow_smaller_final_batch=smaller)


# Tensors


# Datasets


def test_the_spec_of_a_dataset_knows_what_is_fixed(tf):
    for smaller, rows in ((False, 4), (True, None)):
        pipeline = hs.from_examples(every_dtype(9)).batch(
            4, allow_smaller_final_batch=smaller, dynamic_pad=True
        )
        with serving(pipeline) as server, connect(server, framework="tf") as feed:
            dataset = feed.as_dataset()
            spec = dataset.element_spec
            shapes = {name: spec[name].shape.as_list() for name in spec}
            assert shapes["float32"] == [rows, 3] and shapes["i"] == [rows]
            assert shapes["steps"] == [rows, None, 2] and shapes["grid"] == [rows, None, None]
            assert shapes["words"] == [rows, None] and spec["words"].dtype == tf.string
            assert all(spec[dtype].dtype == tf.as_dtype(dtype) for dtype in NUMERIC)
            sizes = [int(tf.shape(batch["i"])[0]) for batch in dataset]
            assert sizes == ([4, 4, 1] if smaller else [4, 4])


def test_an_error_of_the_feed_comes_through_the_dataset_with_its_text(tf):
    """The bad record is further ahead than a worker reads before a trainer asks."""
    rows = [{"x": np.zeros(1 + i // 498, np.float32)} for i in range(500)]
    pipeline = hs.from_examples(rows).batch(5)
    with serving(pipeline) as server, connect(server, framework="tf") as feed:
        dataset = feed.as_dataset()
        elements = iter(dataset.take(-1))
        with pytest.raises(tf.errors.InvalidArgumentError, match="DataError: column 'x': rows of"):
            list(elements)


def test_a_dataset_left_early_does_not_hold_up_the_close(tf):
    """The feed never ends and its next batch never comes: a thread of TensorFlow waits for it."""
    with serving(numbered(8)) as server:
        other = headrace.connect(server.address, prefetch=0, timeout=600)
        next(other)  # never committed, so the feed does not end
        feed = headrace.connect(server.address, framework="tf", timeout=600)
        iterator = iter(feed.as_dataset().prefetch(4))
        next(iterator)
        started = time.monotonic()
        feed.close()
        del iterator
        gc.collect()
        assert time.monotonic() - started < PATIENCE_S
        other.close()
