"""Windows of tokens with a random phase, by real servers and trainers."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import connect, serving

COUNT, WINDOW, EPOCHS = 200, 6, 4
Seen = list[tuple[int, list[list[int]], list[list[int]]]]


def taken(server: hs.Server, most: int | None = None) -> Seen:
    with connect(server, prefetch=0) as feed:
        return [
            (batch.epoch, batch["tokens"].tolist(), batch["targets"].tolist())
            for batch in islice(iter(feed.__next__, None), most)
        ]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("stride", [None, 4])
def test_windows_begin_elsewhere_in_each_epoch_and_again_there_after_a_resumption(
    tmp_path, shuffled, stride
):
    np.arange(COUNT, dtype=np.uint16).tofile(tmp_path / "text.bin")
    given: dict[str, Any] = {"window": WINDOW, "stride": stride, "shift": 2, "phase_seed": 3}
    text = hs.read_tokens(str(tmp_path / "text.bin"), "uint16", phase="random", **given)
    text = text.shuffle(5) if shuffled else text
    feed = text.repeat(EPOCHS, across_batches=False).batch(3, allow_smaller_final_batch=True)
    with serving(feed, partitions=2) as server:
        with connect(server) as one:
            lengths = [(len(one), sum(1 for _ in one)) for _ in range(EPOCHS)]
    assert all(known == came for known, came in lengths)
    with serving(feed, partitions=2) as server:
        whole = taken(server)
    step, phases = stride or WINDOW, []
    for epoch in range(EPOCHS):
        rows = sorted(row for of, tokens, _ in whole if of == epoch for row in tokens)
        ahead = sorted(row for of, _, targets in whole if of == epoch for row in targets)
        phases.append(rows[0][0])
        starts = range(phases[-1], phases[-1] + len(rows) * step, step)
        assert rows == [[*range(at, at + WINDOW)] for at in starts]
        assert ahead == [[*range(at + 2, at + 2 + WINDOW)] for at in starts]
        assert len(rows) == (COUNT - 2 - (step - 1) - WINDOW) // step + 1
    assert 0 <= min(phases) < max(phases) < step
    options = {"partitions": 2, "state_dir": tmp_path / "state", "durability": "power"}
    with serving(feed, **options) as server:
        first = taken(server, len(whole) // 2)
    with serving(feed, workers=2, **options) as server:
        assert first + taken(server) == whole
