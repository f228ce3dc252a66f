"""The stream depends on the pipeline and its partitions alone."""

from __future__ import annotations

from collections import Counter

import numpy as np

import headrace_server as hs
from tests.patience import PATIENCE_S

from . import user_functions
from .serving import connect, serving
from .streams import Frozen, frozen


def read(
    pipelines: hs.Pipeline | dict[str, hs.Pipeline], workers: int, partitions: int
) -> dict[str, list[Frozen]]:
    """Return all batches of each feed, as one trainer gets them."""
    named = pipelines if isinstance(pipelines, dict) else {"default": pipelines}
    streams = {}
    with hs.run(named, workers=workers, partitions=partitions) as server:
        for name in named:
            with connect(server, feed=name) as feed:
                streams[name] = [frozen(batch) for batch in feed]
    return streams


def numbers(stream: list[Frozen], column: str = "i") -> list[int]:
    """Return one integer column of a whole stream."""
    return [
        number
        for _, _, columns in stream
        for name, dtype, _, data in columns
        if name == column
        for number in np.frombuffer(data, dtype).tolist()
    ]


def test_an_exact_shuffle_has_every_example_once_in_each_epoch_and_another_order_each_time() -> (
    None
):
    examples = [{"i": i} for i in range(60)]
    pipeline = hs.from_examples(examples).shuffle(seed=5).repeat(3).batch(4)
    alone = numbers(read(pipeline, 1, 1)["default"])
    epochs = [alone[k : k + 60] for k in (0, 60, 120)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != list(range(60))
    parted = numbers(read(pipeline, 2, 3)["default"])
    assert Counter(parted) == dict.fromkeys(range(60), 3)


def test_rows_that_a_filter_dropped_are_counted() -> None:
    examples = [{"i": i} for i in range(40)]
    pipeline = hs.from_examples(examples).filter(user_functions.is_even).batch(5)
    with serving(pipeline, partitions=2) as server:
        with connect(server) as feed:
            assert sum(batch.rows for batch in feed) == 20
        assert server.wait(PATIENCE_S)
        assert server.dropped["default"]["filtered"] == 20
