"""Why targets are missed, as far as it was measured: kept by hand, printed below the table.

    (comparison, what) ─► the reason, without a full stop        what: rate, CPU, p99, peak, growth

A reason is printed only where its target is missed.  How it was found stands in docs/log.md.
"""

from __future__ import annotations

_TWO = "headrace arrival, two in flight"

WHY: dict[tuple[str, str], str] = {
    ("W1: headrace shm tf / Grain, 2 workers", "rate"): (
        "the aim was set against a Grain of 54,000 examples/s. Here its source makes whole "
        "batches, 122,000 examples/s in pairs in which headrace made 262,000 (load 8 to 10)"
    ),
    (f"W4: {_TWO} / Reverb, states inserted", "rate"): (
        "the aim was set against a Reverb of 47 steps/s. Here it has one writer and one flush a "
        "step, which gave 92 steps/s where inserting and sampling item by item gave 24 (single "
        "runs, at a load of 10)"
    ),
}
