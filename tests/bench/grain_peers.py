"""Grain: a source of whole batches by number, read by worker processes.

    number ─► batch by hand ─► shared memory ─► arrays, in the order of numbers

Its own forms cost more: examples of an ArrayRecord file one by one, mapped and batched, or a
TFRecord file read forward, which workers can not share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import by_hand
from .steps import LOADED, READY, Check, Contestant, Steps

#: Batches that a worker makes ahead.
_AHEAD = 4
#: More than any run takes: the source repeats itself.
_FOR_EVER = 2**31


class _Batches:
    """A random-access source in Grain's sense."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return _FOR_EVER

    def __getitem__(self, number: int) -> by_hand.Batch:
        return self._source.batch(int(number))


def workers(workload: str, number: int, check: Check) -> Contestant:
    def steps(directory: Path) -> Steps:
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["bench"])
        yield LOADED
        source = by_hand.SOURCES[workload](directory)
        dataset = (
            grain.MapDataset.source(_Batches(source))
            .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD))
            .mp_prefetch(grain.MultiprocessingOptions(number, per_worker_buffer_size=_AHEAD))
        )
        yield READY
        checked = False
        iterator = iter(dataset)
        try:
            for batch in iterator:
                if not checked:
                    checked = True
                    check(batch, directory)
                yield 1
        finally:
            iterator.close()  # its workers

    return steps
