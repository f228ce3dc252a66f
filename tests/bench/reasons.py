"""Why targets are missed, as far as it was measured: kept by hand, printed below the table.

    (comparison, what) ─► the reason, without a full stop        what: rate, CPU, p99, peak, growth

A reason is printed only where its target is missed.  How it was found stands in docs/log.md.
"""

from __future__ import annotations

_SERVICE = "tf.data service"
_BARRIER = "Barrier in the graph"
_TWO = "headrace arrival, two in flight"

_STRONGER_BARRIER = (
    "the Barrier that was rebuilt here makes 1,300 to 1,500 steps/s in one process, where 1,031 "
    "were recorded of the original"
)
_STORE = (
    "every commit is a record of the journal, synced in a thread of its own, with an object for "
    "each of its 32 rows: some 200 µs of processor time on the two cores that the step itself "
    "needs, and two more wakes"
)

WHY: dict[tuple[str, str], str] = {
    (f"W1: headrace shm tf / {_SERVICE}", "rate"): (
        "two cores are full: a batch costs 0.34 ms of processor time over all processes, so 5,900 "
        "batches/s are the most. 0.11 of it are the worker's (reading, parsing, writing), 0.05 the "
        "router's, the rest the trainer's: three columns as tensors, 256 strings among them. The "
        "service makes 2,100 to 2,200 batches/s here, 1,570 to 1,630 were recorded"
    ),
    (f"W1: headrace shm tf, prefetch 2 / {_SERVICE}", "rate"): (
        "with two batches ahead every batch wakes router, worker and trainer: 0.62 ms of processor "
        "time per batch instead of 0.34, and waiting for each other. prefetch=16 is the remedy"
    ),
    (f"W1: headrace shm tf, prefetch 2 / {_SERVICE}", "CPU"): "the wakes, as above",
    (f"W1: headrace from Arrow / {_SERVICE}", "rate"): (
        "reading costs next to nothing, and what is left is that of any batch: 0.24 ms of "
        "processor time for its lease, its messages and its tensors, on two full cores. The "
        "prototype that was aimed by had no router and no leases"
    ),
    (f"W1: headrace from Parquet / {_SERVICE}", "rate"): (
        "0.35 ms of processor time per batch: a row group of 20,000 rows is decoded in one go, "
        "which costs more than parsing TFRecord, and for so long nothing else is made"
    ),
    ("W1: headrace shm tf / Grain, 2 workers", "rate"): (
        "the aim was set against a Grain of 54,000 examples/s. Here its source makes whole "
        "batches: 209,000 examples/s beside headrace's 1,345,000"
    ),
    (f"W2: headrace sequences from Arrow / {_SERVICE} sequences", "rate"): (
        "within the spread of the aim; 0.50 ms of processor time per batch, most of it the copy of "
        "ragged rows into padded ones"
    ),
    (f"W4: headrace arrival / {_BARRIER}", "rate"): (
        "a step passes trainer, router, worker, router and trainer, one after the other: four "
        "wakes of another process, each 20 to 30 µs for who wakes, and some 1.0 to 1.4 ms of "
        f"processor time in Python. {_STRONGER_BARRIER}"
    ),
    (f"W4: {_TWO} / {_BARRIER}", "rate"): (
        "1.2 to 1.6 ms of processor time per step on two cores allow 1,300 to 1,700 steps/s, "
        f"whatever is in flight. {_STRONGER_BARRIER}"
    ),
    (f"W4: headrace lanes / {_BARRIER}", "rate"): (
        "1.0 ms of processor time per step; with two batches ahead every step wakes all three "
        f"processes. {_STRONGER_BARRIER}"
    ),
    (f"W4: headrace lanes, prefetch 8 / {_BARRIER}", "rate"): (
        "0.77 ms of processor time per step: two cores allow 2,600 steps/s. The worker takes 0.26 "
        f"of it, the router 0.17, the trainer the rest. {_STRONGER_BARRIER}"
    ),
    (f"W4: {_TWO} / Reverb, states inserted", "rate"): (
        "the aim was set against a Reverb of 47 steps/s. Here it has one writer and one flush a "
        "step, which makes 174 steps/s"
    ),
    ("W4: headrace arrival, durable / headrace arrival", "rate"): _STORE,
    (f"W4: headrace arrival, durable, two in flight / {_TWO}", "rate"): _STORE,
    ("W4 latency: headrace save to ready, arrival / ZeroMQ round trip", "p99"): (
        "the median is 1.0 ms, since states come back by trainer, router, worker, router and "
        "trainer; p99 is twice that, as for the Barrier (1.6 to 4 ms), whose threads wait for "
        "cores as well"
    ),
}
