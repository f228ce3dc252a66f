"""Grain: whole batches by number, and its own packing and mixing of examples in memory.

    number ─► batch by hand ─► shared memory ─► arrays, in the order of numbers

Its other forms cost more: examples of an ArrayRecord file one by one, mapped and batched, or a
TFRecord file read forward, which workers can not share.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import by_hand, sequences, workloads
from .steps import LOADED, READY, Check, Contestant, Filled, Steps

#: Batches that a worker makes ahead.
_AHEAD = 4
#: More than any run takes: the source repeats itself.
_FOR_EVER = 2**31
#: Rows that are open at a time: headrace's default.
_OPEN = 64


class _Source:
    """A random-access source in Grain's sense."""

    def __init__(self, get: Callable[[int], Any]) -> None:
        self._get = get

    def __len__(self) -> int:
        return _FOR_EVER

    def __getitem__(self, number: int) -> Any:
        return self._get(int(number))


def whole_batches(workload: str, check: Check) -> Contestant:
    def make(grain: Any, directory: Path) -> Any:
        return grain.MapDataset.source(_Source(by_hand.SOURCES[workload](directory).batch))

    return _contestant(make, check, workers=2)


def mixed(workers: int) -> Contestant:
    def make(grain: Any, directory: Path) -> Any:
        columns = workloads.w1_columns()
        columns["id"] = columns["id"].astype("S10")
        rows = _Source(lambda i: {n: c[i % workloads.RECORDS] for n, c in columns.items()})
        sources = [grain.MapDataset.source(rows) for _ in workloads.MIX]
        return grain.MapDataset.mix(sources, workloads.MIX).batch(workloads.BATCH)

    return _contestant(make, lambda batch, _: workloads.check_mixed(batch), workers)


def packed(workers: int) -> Contestant:
    """First fit.  Best fit takes longer and pads as much."""

    def make(grain: Any, directory: Path) -> Any:
        examples = [np.arange(i, i + t, dtype=np.int32) for i, t in enumerate(sequences.lengths())]
        source = _Source(lambda i: {"tokens": examples[i % sequences.RECORDS]})
        return grain.experimental.FirstFitPackIterDataset(
            grain.MapDataset.source(source).to_iter_dataset(grain.ReadOptions(0, 0)),
            length_struct={"tokens": sequences.PACKED_STEPS},
            num_packing_bins=_OPEN,
        ).batch(sequences.PACKED_ROWS)

    def check(batch: Any, directory: Path) -> None:
        names = ("tokens", "tokens_segment_ids", "tokens_positions")
        sequences.check_packed(*(batch[name] for name in names))

    return _contestant(make, check, workers, ids="tokens_segment_ids")


def _contestant(
    make: Callable[[Any, Path], Any], check: Check, workers: int, ids: str | None = None
) -> Contestant:
    """``ids``: the column that is 0 where a batch has padding.  Without workers the trainer's
    process makes the batches.
    """

    def steps(directory: Path) -> Steps:
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["bench"])
        yield LOADED
        dataset = make(grain, directory)
        if isinstance(dataset, grain.MapDataset):
            threads, ahead = (1, _AHEAD) if workers else (0, 0)
            dataset = dataset.to_iter_dataset(grain.ReadOptions(threads, ahead))
        if workers:
            options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=_AHEAD)
            dataset = dataset.mp_prefetch(options)
        yield READY
        checked = False
        iterator = iter(dataset)
        try:
            for batch in iterator:
                if not checked:
                    checked = True
                    check(batch, directory)
                yield Filled(sequences.filled(batch[ids])) if ids else 1
        finally:
            iterator.close()  # its workers

    return steps
