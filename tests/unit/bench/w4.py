"""A small W4: its files with fewer sequences, and batches that are as they must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import sequences, states


def small(directory: Path, monkeypatch: Any) -> Path:
    """The files of 1,000 sequences, so that each of 20 buckets fills; checks know of the cut."""
    monkeypatch.setattr(sequences, "RECORDS", 1000)
    sequences.prepare(directory)
    return directory


def batch() -> dict[str, Any]:
    """Each row another segment of another example, among them one that is padded."""
    rows = np.arange(states.BATCH)
    total = sequences.lengths()[rows]
    at = rows % -(-total // states.UNROLL)
    at[0] = (total[0] - 1) // states.UNROLL
    length = np.minimum(total - at * states.UNROLL, states.UNROLL)
    x = np.zeros((len(rows), states.UNROLL, sequences.WIDTH), np.float32)
    for row, i, t in zip(rows.tolist(), at.tolist(), length.tolist(), strict=True):
        x[row, :t] = sequences.pool()[row + i * states.UNROLL :][:t]
    carried = {
        name: np.repeat(at[:, None].astype(np.float32) * by, states.STATE_WIDTH, 1)
        for name, by in states.STATES.items()
    }
    keys = [sequences.key(row) for row in rows.tolist()]
    return {
        "keys": np.array(keys, object),
        "sequence": at,
        "length": length,
        "context": total,
        "x": x,
        "states": carried,
    }
