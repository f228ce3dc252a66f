"""``python -m tests.bench.randomness``: how well orders mix files whose rows are sorted by label.

    rows 0 … n-1, in 64 blocks, of 16 classes one after the other ──► an order ──► one epoch of SGD

It measures no time, and gives the same table on every machine.
"""

from __future__ import annotations

import numpy as np

from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import ReadingOrder
from headrace_server.reading.chunk import Chunk
from headrace_server.reading.columns import Rows, numbers_of
from headrace_server.reading.partition_rows import partition_reader
from headrace_server.reading.source import IndexedSource

BLOCKS, EACH = 64, 256
ROWS = BLOCKS * EACH
CLASSES, WIDTH, BATCH, RATE = 16, 32, 32, 1.0
EPOCHS = range(5)
ORDERS = {
    "exact": ReadingOrder(seed=1),
    **{f"blocks={k} of 64": ReadingOrder(seed=1, blocks=k, block_bytes=1) for k in (32, 16, 4)},
    f"window of as many rows ({16 * EACH})": ReadingOrder(seed=1, window=16 * EACH),
    "window of 1000": ReadingOrder(seed=1, window=1000),
    "none": ReadingOrder(),
}


class Numbers(IndexedSource):
    """Rows that are only numbers."""

    def __init__(self) -> None:
        self.fields, self.length = {"n": Field("int64")}, ROWS

    def take(self, rows: Rows) -> Chunk:
        numbers = numbers_of(rows)
        return Chunk.of({"n": numbers}, numbers, "numbers")

    def blocks(self, block_bytes: int) -> np.ndarray:
        return np.arange(BLOCKS) * EACH


def stream(order: ReadingOrder, epoch: int) -> np.ndarray:
    share = partition_reader(Numbers(), order, 0, 1)
    return share.read(epoch, share.start, ROWS)[0].ordinals


def loss(rows: np.ndarray, seed: int) -> float:
    """Return the cross entropy, on other examples, of a linear classifier after these rows."""
    draw = np.random.default_rng(seed)
    centers = draw.normal(size=(CLASSES, WIDTH))
    labels = np.arange(ROWS) * CLASSES // ROWS
    given, other = (centers[labels] + draw.normal(size=(ROWS, WIDTH), scale=3) for _ in range(2))
    weights = np.zeros((WIDTH, CLASSES))

    def chances(x: np.ndarray) -> np.ndarray:
        odds = np.exp(x @ weights)
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    for batch in rows.reshape(-1, BATCH):
        wrong = chances(given[batch]) - np.eye(CLASSES)[labels[batch]]
        weights -= RATE / BATCH / WIDTH * given[batch].T @ wrong
    return float(-np.log(chances(other)[np.arange(ROWS), labels]).mean())


def main() -> None:
    print("| shuffle | distance of neighbours / exact | loss after one epoch |")
    print("| --- | ---: | ---: |")
    for name, order in ORDERS.items():
        streams = [stream(order, epoch) for epoch in EPOCHS]
        apart = np.mean([np.abs(np.diff(rows)).mean() for rows in streams]) / (ROWS / 3)
        mean = np.mean([loss(rows, epoch) for epoch, rows in zip(EPOCHS, streams, strict=True)])
        print(f"| {name} | {apart:.2f} | {mean:.3f} |")


if __name__ == "__main__":
    main()
