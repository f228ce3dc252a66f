"""Why targets are missed, as far as it was measured: kept by hand, printed below the table.

    (comparison, what) ─► the reason, without a full stop        what: rate, CPU, p99, peak, growth

A reason is printed only where its target is missed.  How it was found stands in docs/log.md.
"""

from __future__ import annotations

_TWO = "headrace arrival, two in flight"
_BARRIER = "Barrier in the graph"
_W4 = (
    "with two batches in flight and in lanes the owner takes 130 to 165 µs for a step and never "
    "rests: some 40 to copy memory that no cache holds, the rest in 280 functions of Python, in "
    "numpy's calls and in the kernel; by process and function above the table.  With one in flight "
    "owner and trainer take turns of 113 and 93"
)
_DURABLE = (
    "the record of flight takes 7 µs between a save and the next batch (it took 50); a synced "
    "write takes 0.4 to 1 ms once in 24 to 48 steps, and meanwhile the owner does not poll, so it "
    "is woken for each save: by process and function above the table"
)
_EARLIER_TCP = (
    "as much work as then: the front passes on by its I/O thread what the router did.  That is "
    "older than the bound of the send buffer, by which W3 made 1.4 and W2 1.06 of the rate"
)

WHY: dict[tuple[str, str], str] = {
    ("W1: headrace default settings / tf.data service", "rate"): (
        "the owner takes some 100 µs for a batch, 50 of them to read and parse and 20 to assemble, "
        "and works all the time"
    ),
    ("W2: headrace sequences / tf.data service sequences", "rate"): (
        "the owner takes some 230 µs for a batch and works all the time: 100 to 115 to copy 1.7 MB "
        "that no cache holds, some 30 to parse; the rest as from Arrow, by function above the table"
    ),
    ("W3: headrace images shm / tf.data service images", "rate"): (
        "three quarters of the worker's time are one copy of 19 MB, as beside the ring"
    ),
    ("W1: headrace from Parquet / tf.data service", "rate"): (
        "the owner takes 150 to 160 µs for a batch, 65 to 80 of them to decode: 5 ms for a row "
        "group of 20,000 rows, in which nothing else is made.  From Arrow it takes 70.  Decoding "
        "the next group in a thread makes 1.24 times the rate, and would blame the wrong rows for "
        "a crash"
    ),
    ("W1: headrace from Arrow / tf.data service", "rate"): (
        "both ends take some 70 µs for a batch: the trainer a third of them for a tensor of 256 "
        "strings, the owner 25 to make the batch and 10 to read it"
    ),
    ("W2: headrace sequences from Arrow / tf.data service sequences", "rate"): (
        "the owner takes some 195 µs for a batch and works all the time: 90 to 100 to copy 1.7 MB "
        "that no cache holds and to pad them, 15 to write the other columns, 20 to lay them out, "
        "15 to hear the trainer, 10 each to decide and to announce, 14 to send and to store "
        "commits: by function above the table.  The trainer takes 130 beside it"
    ),
    ("W3: headrace images shm / shared-memory ring", "rate"): (
        "the owner takes 930 µs for a batch and works all the time: 700 to 750 to copy 19 MB, 50 "
        "to hear the trainer, 35 each to read, and to send and store; all by function above the "
        "table.  The ring takes 890 to 930, nearly all of them to copy"
    ),
    ("W2: headrace sequences tcp / earlier headrace sequences tcp", "rate"): (
        f"{_EARLIER_TCP}.  A batch of 1.7 MB takes 1.3 ms of both cores: 0.3 of the owner, 0.4 of "
        "the front and 0.6 of the trainer, 0.5 of it in I/O threads of ZeroMQ"
    ),
    ("W3: headrace images tcp / raw TCP", "rate"): (
        "a batch takes 7.3 ms of processor time: 2.9 of the front, nearly all of them in an I/O "
        "thread of ZeroMQ, 3.0 of the trainer, for such a thread and a copy into aligned memory, "
        "and 1.4 of the owner, most of them to copy into the slab"
    ),
    ("W3: headrace images tcp / earlier headrace images tcp", "rate"): _EARLIER_TCP,
    ("W1: headrace shm tf / Grain, 2 workers", "rate"): (
        "its source makes whole batches of a mapped file whose records are not verified, in two "
        "processes, some 200,000 to 260,000 examples/s"
    ),
    (f"W4: headrace arrival / {_BARRIER}", "rate"): _W4,
    (f"W4: {_TWO} / {_BARRIER}", "rate"): _W4,
    (f"W4: headrace lanes / {_BARRIER}", "rate"): _W4,
    (f"W4: headrace lanes, prefetch 8 / {_BARRIER}", "rate"): _W4,
    ("W4 latency: headrace save to ready, arrival / ZeroMQ round trip", "p99"): (
        "a process that wakes waits 1.0 to 1.5 ms for a core once in some hundred steps; a lap of "
        "the journal takes 0.6 ms once in 120 (now in pieces of 0.2 to 0.3 ms), and a chunk of "
        "54 MB is verified once in some 330"
    ),
    ("W1: headrace fit / headrace fit, prefetch 16", "rate"): (
        "pairs spread from 0.75 to 1.28.  Alone, right after that run, it was 0.99 (0.94–1.00)"
    ),
    ("W3: headrace images shm / Grain images, 2 workers", "rate"): (
        "three quarters of the worker's time are one copy of 19 MB, as beside the ring"
    ),
    ("W4: headrace arrival, durable, process / headrace arrival", "rate"): (
        "the record of flight takes 7 µs between a save and the next batch (it took 50), of a "
        "cycle of some 240, and as much again by what it leaves in the caches; the journal takes "
        "what it takes in shared memory: by process and function above the table"
    ),
    ("W4: headrace arrival, durable / headrace arrival", "rate"): _DURABLE,
    (f"W4: headrace arrival, durable, two in flight / {_TWO}", "rate"): _DURABLE,
    ("W4: headrace lanes tcp / earlier headrace lanes tcp", "rate"): (
        "a step takes 0.64 ms of both cores.  Four threads of Python and ZeroMQ at the front and "
        "the trainer share with the owner what two cores have: by thread above the table"
    ),
    ("restart: headrace load", "time"): (
        "memory that the virtual machine gets from its host as it is first touched, 3 s for a GB "
        "of huge pages; of small pages that were in use before, it took 2.9 s in all"
    ),
    ("W4: headrace lanes / tf.data windows", "rate"): (
        "windows are cut in the trainer's own process and all rows end together, so they take 55 "
        "µs and no step waits for another process; here the owner takes some 150 for a batch"
    ),
}
