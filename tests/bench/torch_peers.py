"""torch's DataLoader: its workers make whole batches, by number, and hand them over as tensors.

    number ─► batch by hand ─► tensor ─► shared memory (a copy) ─► trainer, in the order of numbers

A tensor that is in shared memory before would be passed on without a copy, and the trainer would
hold the source itself; so what is ready in memory (W3) is numpy's.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from . import by_hand
from .keras_fit import lightning_steps
from .steps import LOADED, READY, Check, Contestant, Steps


def tensors(batch: by_hand.Batch) -> dict[str, Any]:
    """Numbers as tensors; strings as torch's own collation leaves them."""
    import torch

    return {
        name: value.tolist() if value.dtype.kind == "S" else torch.from_numpy(value)
        for name, value in batch.items()
    }


class _Batches:
    def __init__(self, source: Any) -> None:
        self._source = source

    def __getitem__(self, number: int) -> dict[str, Any]:
        return tensors(self._source.batch(number))


def loader(workload: str, workers: int, check: Check, lightning: bool = False) -> Contestant:
    def steps(directory: Path) -> Steps:
        import torch

        yield LOADED
        source = by_hand.SOURCES[workload](directory)
        yield READY
        batches = torch.utils.data.DataLoader(
            _Batches(source),  # type: ignore[arg-type]
            batch_size=None,
            sampler=itertools.count(),
            num_workers=workers,
        )
        if lightning:
            yield from lightning_steps(batches)
        checked = False
        for batch in batches:
            if not checked:
                checked = True
                check({**batch, **_strings(batch)}, directory)
            yield 1

    return steps


def _strings(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in batch.items() if isinstance(value, list)}
