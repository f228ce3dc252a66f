"""Why targets are missed, as far as it was measured: kept by hand, printed below the table.

    (comparison, what) ─► the reason, without a full stop        what: rate, CPU, p99, peak, growth

A reason is printed only where its target is missed.  How it was found stands in docs/log.md.
"""

from __future__ import annotations

_TWO = "headrace arrival, two in flight"
_BARRIER = "Barrier in the graph"
_W4 = (
    "two additions of TensorFlow in Python, and an owner that takes 200 to 400 µs of a core for a "
    "step where both ends share one: by process and function above the table"
)

WHY: dict[tuple[str, str], str] = {
    ("W1: headrace from Parquet / tf.data service", "rate"): (
        "a row group of 20,000 rows is decoded in one go, which costs more than parsing TFRecord, "
        "and for so long nothing else is made"
    ),
    ("W1: headrace from Arrow / tf.data service", "rate"): (
        "117 µs of the trainer, 35 of them for a tensor of 256 strings, and 129 of the worker, 48 "
        "of them to make the batch, where both share one core: mapping saves none of these"
    ),
    ("W2: headrace sequences from Arrow / tf.data service sequences", "rate"): (
        "two fifths of the worker's time copy rows into the slab, and a seventh announces batches "
        "with the cursor of the buckets"
    ),
    ("W3: headrace images shm / shared-memory ring", "rate"): (
        "three quarters of the worker's time are the same copy of 19 MB; the rest announces, sends "
        "and hears, while the trainer polls on the same core"
    ),
    ("W1: headrace shm tf / Grain, 2 workers", "rate"): (
        "the target was set against a Grain of 54,000 examples/s. Here its source makes whole "
        "batches, some 200,000 examples/s"
    ),
    (f"W4: headrace arrival / {_BARRIER}", "rate"): _W4,
    (f"W4: {_TWO} / {_BARRIER}", "rate"): _W4,
    (f"W4: headrace lanes / {_BARRIER}", "rate"): _W4,
    (f"W4: headrace lanes, prefetch 8 / {_BARRIER}", "rate"): _W4,
    ("W4 latency: headrace save to ready, arrival / ZeroMQ round trip", "p99"): (
        "a process that wakes waits 1.0 to 1.5 ms for a core once in some hundred steps, and a "
        "chunk of 54 MB is verified once in some 330"
    ),
    ("restart: headrace load", "time"): (
        "memory that the virtual machine gets from its host as it is first touched: the same load "
        "a second time in one process took 3.0 to 3.6 s"
    ),
    (f"W4: {_TWO} / Reverb, states inserted", "rate"): (
        "the target was set against a Reverb of 47 steps/s. Here it has one writer and one flush a "
        "step, which makes 170 steps/s and more"
    ),
}
