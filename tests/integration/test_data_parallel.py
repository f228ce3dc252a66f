"""Segments under synchronous data-parallel training: torch's DDP in two processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs

from .processes import HERE, Process
from .serving import serving

LENGTHS = [1 + 7 * i % 31 for i in range(24)]
_SHAPES = {
    "arrival": {},
    "lanes": {"order": "lanes"},
    "home": {"order": "lanes", "state_placement": "trainer"},
}


def pipeline(**options: str) -> hs.Pipeline:
    rng = np.random.default_rng(5)
    examples = [
        {"k": f"e{i}", "x": rng.normal(size=(n, 2)).astype("float32"), "y": np.float32(i % 2)}
        for i, n in enumerate(LENGTHS)
    ]
    return (
        hs.from_examples(examples)
        .shuffle(seed=2)
        .batch_sequences_with_states(
            *("k", ["x"], ["y"], None, {"h": hs.zeros((4,))}, 5, 3), **options
        )
    )


@pytest.mark.slow
def test_two_processes_take_equal_steps_and_end_with_equal_parameters(tmp_path: Path):
    pytest.importorskip("torch")
    feeds = {name: pipeline(**options) for name, options in _SHAPES.items()}
    with serving(feeds, partitions=2) as server:
        where = str(tmp_path / "store"), *feeds
        ranks = [
            Process(
                *(str(HERE / "ddp_trainer.py"), server.address, str(rank), "2", *where),
                imports=["torch", "torch.distributed"],
            )
            for rank in range(2)
        ]
        said = []
        for rank in ranks:
            with rank:
                said.append([rank.wait_for("trained") for _ in feeds])
    wanted = sorted(
        f"{at:05d}_of_{-(-n // 5):05d}:e{i}"
        for i, n in enumerate(LENGTHS)
        for at in range(-(-n // 5))
    )
    for one, other in zip(*said, strict=True):
        assert one["steps"] == other["steps"] > 0, one["feed"]
        assert sorted(one["seen"] + other["seen"]) == wanted
        assert one["p"] == pytest.approx(other["p"], rel=1e-6)
