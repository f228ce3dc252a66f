"""A fit that was killed goes on from its checkpoint as if nothing had happened."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.nursery import warm_run
from tests.patience import PATIENCE_S

from .serving import serving

pytestmark = pytest.mark.tf

PROGRAM = Path(__file__).parent / "keras_trainer.py"
EPOCHS, EVERY = 3, 3  # as in the program, which imports TensorFlow


def plain() -> hs.Pipeline:
    random = np.random.default_rng(1)
    rows = [{"x": random.normal(size=4).astype("float32"), "y": np.float32(i)} for i in range(15)]
    source = hs.from_examples(rows).shuffle(seed=2)
    return source.repeat(EPOCHS, across_batches=False).batch(3)


def segments() -> hs.Pipeline:
    random = np.random.default_rng(1)
    lengths = random.integers(2, 12, 8)
    examples = [
        {"key": f"e{i}", "x": random.normal(size=(length, 1)).astype("float32")}
        for i, length in enumerate(lengths)
    ]
    source = hs.from_examples(examples).shuffle(seed=2).repeat(EPOCHS, across_batches=False)
    return source.batch_sequences_with_states(
        "key", ["x"], [], None, {"h": hs.zeros((3,), "float32")}, 4, 4
    )


def trained(address: str, directory: Path, dies_at: int = 0) -> tuple[dict[int, str], list[str]]:
    """Train from the feed that has the directory's name: the losses by step, and the weights."""
    words = [PROGRAM, address, directory.name, directory, str(dies_at)]
    done = warm_run(*words, imports=["tensorflow", "keras"], PYTHONHASHSEED="0")
    assert done.returncode == (-signal.SIGKILL if dies_at else 0), done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    losses = {line["step"]: line["loss"] for line in lines if "step" in line}
    return losses, lines[-1].get("weights", [])


@pytest.mark.tools
@pytest.mark.parametrize("kind", ["plain", "segments"])
def test_a_fit_that_is_killed_and_started_again_has_the_same_losses_bit_for_bit(
    kind: str, tf: Any, tmp_path: Path
) -> None:
    """1. A fit runs to its end.
    2. Another one is killed at a step, and started again.
    3. It has the same losses and weights, to the last bit.
    """
    pipeline, step = {"plain": plain, "segments": segments}[kind](), 8
    feeds = {kind: pipeline, f"{kind}-killed": pipeline}
    with serving(feeds, partitions=1, state_dir=tmp_path / "state") as server:
        whole, weights = trained(server.address, tmp_path / kind)
        before, _ = trained(server.address, tmp_path / f"{kind}-killed", step)
        after, resumed = trained(server.address, tmp_path / f"{kind}-killed")
    assert len(whole) > 3 * EVERY and weights
    assert before == {k: whole[k] for k in range(1, step + 1)}
    assert min(after, default=step) > step - EVERY
    assert after == {k: whole[k] for k in after} and max(after) == len(whole)
    assert resumed == weights


def test_what_can_not_be_kept_is_refused(tf: Any, tmp_path: Path) -> None:
    import keras

    import headrace.keras

    with serving(plain()) as server:
        options = {"framework": "tf", "timeout": PATIENCE_S}
        with headrace.connect(server.address, commit="explicit", **options) as feed:
            with pytest.raises(ValueError, match="every=-1 is no number of steps"):
                headrace.keras.Checkpoint(feed, tmp_path, -1)
            with pytest.raises(ValueError, match=r"every=1\.5 is no number of steps"):
                headrace.keras.Checkpoint(feed, tmp_path, 1.5)  # type: ignore[arg-type]
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            with pytest.raises(ValueError, match=r"let it begin with keras.Input"):
                model.fit(
                    feed.as_dataset().map(lambda batch: (batch["x"], batch["y"])),
                    shuffle=False,
                    verbose=0,
                    callbacks=[headrace.keras.Checkpoint(feed, tmp_path)],
                )
        with headrace.connect(server.address, **options) as feed:
            with pytest.raises(ValueError, match='connect with commit="explicit"'):
                headrace.keras.Checkpoint(feed, tmp_path)
        ranked = {"rank": 0, "world_size": 2, "commit": "explicit"}
        with headrace.connect(server.address, **ranked, **options) as feed:
            with pytest.raises(ValueError, match="is shared with other ranks; commit on all"):
                headrace.keras.Checkpoint(feed, tmp_path)
