"""Feeds under synchronous data-parallel training: torch's DDP in two processes.

How killed ranks go on is in test_torch.py, with the other loops.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import TRAINING_PATIENCE_S

from .processes import HERE, Process
from .serving import serving

EPOCHS = 3  # as in ddp_trainer.py
LENGTHS = [1 + 7 * i % 31 for i in range(24)]
_SEGMENTS: dict[str, dict[str, str]] = {
    "arrival": {},
    "lanes": {"order": "lanes"},
    "home": {"order": "lanes", "state_placement": "trainer"},
}


def feeds() -> dict[str, hs.Pipeline]:
    """Return feeds of the same sequences: whole ones, in two shapes, and segments."""
    rng = np.random.default_rng(5)
    examples = [
        {"k": f"e{i}", "x": rng.normal(size=(n, 2)).astype("float32"), "y": np.float32(i % 2)}
        for i, n in enumerate(LENGTHS)
    ]
    source = hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False)
    state = {"h": hs.zeros((4,))}
    whole = {"dynamic_pad": True, "allow_smaller_final_batch": True}
    return {
        "plain": source.batch(3, **whole),
        "buckets": source.bucket_by_sequence_length("x", 3, [12, 22], **whole),
        **{
            name: source.batch_sequences_with_states("k", ["x"], ["y"], None, state, 5, 3, **order)
            for name, order in _SEGMENTS.items()
        },
    }


@pytest.mark.slow
def test_two_processes_take_equal_steps_and_end_with_equal_parameters(tmp_path: Path):
    pytest.importorskip("torch")
    shapes = feeds()
    with serving(shapes, partitions=2) as server:
        where = str(tmp_path / "store"), *shapes
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
                said.append([rank.wait_for("trained", TRAINING_PATIENCE_S) for _ in shapes])
        dropped = server.dropped
    segments = [
        f"{at:05d}_of_{-(-n // 5):05d}:e{i}"
        for i, n in enumerate(LENGTHS)
        for at in range(-(-n // 5))
    ]
    for one, other in zip(*said, strict=True):
        name, both = one["feed"], Counter(one["seen"] + other["seen"])
        assert one["steps"] == other["steps"] and len(one["steps"]) == EPOCHS, name
        assert min(one["steps"]) > 0 and one["p"] == other["p"], name
        if name in _SEGMENTS:
            assert both == Counter(EPOCHS * segments), name
        else:  # the rest of a round that not all ranks can have is dropped, and counted
            assert max(both.values()) <= EPOCHS, name
            rest = sum(dropped.get(name, {}).values())
            assert both.total() + rest == EPOCHS * len(LENGTHS) and rest < both.total(), name
