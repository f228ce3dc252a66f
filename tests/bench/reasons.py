"""Why targets are missed, as far as it was measured: kept by hand, printed below the table.

    (comparison, what) ─► the reason, without a full stop        what: rate, CPU, p99, peak, growth

A reason is printed only where its target is missed.  How it was found stands in docs/log.md.
"""

from __future__ import annotations

_TWO = "headrace arrival, two in flight"

WHY: dict[tuple[str, str], str] = {
    ("W1: headrace from Parquet / tf.data service", "rate"): (
        "a row group of 20,000 rows is decoded in one go, which costs more than parsing TFRecord, "
        "and for so long nothing else is made"
    ),
    ("W1: headrace shm tf / Grain, 2 workers", "rate"): (
        "the target was set against a Grain of 54,000 examples/s. Here its source makes whole "
        "batches, some 200,000 examples/s"
    ),
    (f"W4: {_TWO} / Reverb, states inserted", "rate"): (
        "the target was set against a Reverb of 47 steps/s. Here it has one writer and one flush a "
        "step, which makes 170 steps/s and more"
    ),
}
