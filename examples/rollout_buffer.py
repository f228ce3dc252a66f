"""A buffer of samples as post-training of language models uses one, whose puts survive crashes.

    rollout workers ── put(samples, partition) ──► log of the partition ── get(n) ──► trainer
                    ◄─ stored for good ───────────                      ◄─ done(taken) ──

The calls are those of TransferQueue and of the buffer that verl's RFC 7579 asks for: samples are
dicts of columns, and a *partition* is what a step, or a task, puts its samples into.  Here it is a
log, with a feed of the same name.  So

* ``put`` returns once the samples are durable: no later death loses them;
* a sample that was got goes to another ``get`` if its owner dies before ``done``;
* ``get`` waits for samples, and raises ``DeadlineExceeded`` after ``timeout``;
* a writer that starts again under its name learns by ``stored`` how many of its samples are there.

Samples are given out in the order in which they were stored.  A feed has its batches made before
they are asked for, so ``get`` takes whole batches of ``GET`` samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import headrace
import headrace_server as hs

#: Samples in a batch, and the columns of a sample.
GET = 4
COLUMNS = {
    "uid": hs.scalar("bytes"),
    "version": hs.scalar("int64"),
    "tokens": hs.sequence("int64"),
    "logprobs": hs.sequence("float32"),
    "reward": hs.scalar("float32"),
}


def feeds(partitions: Sequence[str] = ("train", "validate")) -> dict[str, hs.Pipeline]:
    """Return what to serve: ``headrace serve examples/rollout_buffer.py:feeds --state-dir …``."""
    given = {"dynamic_pad": True, "allow_smaller_final_batch": True}
    return {name: hs.live(name, COLUMNS).batch(GET, **given) for name in partitions}


class Writer:
    """Puts samples under a name of its own."""

    def __init__(self, address: str, name: str, timeout: float = 60.0) -> None:
        self._address, self._name, self._timeout = address, name, timeout
        self._open: dict[str, headrace.Producer] = {}

    def _to(self, partition: str) -> headrace.Producer:
        if partition not in self._open:
            given = {"log": partition, "name": self._name, "timeout": self._timeout}
            self._open[partition] = headrace.produce(self._address, **given)
        return self._open[partition]

    def put(self, samples: Sequence[Mapping[str, Any]], partition: str) -> int:
        """Store samples; return how many of this name the partition has, all of them durable."""
        out = self._to(partition)
        for sample in samples:
            out.append(sample, version=int(sample["version"]))
        out.flush()
        return out.stored

    def stored(self, partition: str) -> int:
        """Return how many samples of this name a partition has, from earlier processes, too."""
        return self._to(partition).stored

    def finish(self, partition: str) -> None:
        """Let no more come: readers end once all samples are done."""
        self._to(partition).close_log()

    def close(self) -> None:
        for out in self._open.values():
            out.close()


class Reader:
    """Gets the samples of a partition, each for one reader."""

    def __init__(self, address: str, partition: str, timeout: float = 60.0) -> None:
        self._feed = headrace.connect(
            address, feed=partition, commit="explicit", timeout=timeout, prefetch=1
        )

    def get(self, n: int = GET) -> list[headrace.Batch]:
        """Return batches with at least ``n`` samples; fewer, or none, at the end."""
        taken: list[headrace.Batch] = []
        while sum(batch.rows for batch in taken) < n:
            batch = next(self._feed, None)
            if batch is None:
                break
            taken.append(batch)
        return taken

    def done(self, taken: Sequence[headrace.Batch]) -> None:
        """Note that samples are used: no reader gets them again."""
        self._feed.commit([*taken])

    def snapshot(self) -> Any:
        """Return a token for a checkpoint: ``headrace.connect(resume=)`` goes back to it."""
        return self._feed.snapshot()

    def __enter__(self) -> Reader:
        self._feed.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._feed.__exit__(*error)
