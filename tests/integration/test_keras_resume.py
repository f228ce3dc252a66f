"""A fit that was killed goes on from its checkpoint as if nothing had happened."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.forks import Forks
from tests.patience import PATIENCE_S

from .keras_trainer import EPOCHS, EVERY

pytestmark = pytest.mark.tf

PROGRAM = Path(__file__).parent / "keras_trainer.py"


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


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    pytest.importorskip("tensorflow")
    with Forks() as forks:
        yield forks


class Site:
    """A server of equal feeds, and trainers that run to their end or die."""

    def __init__(self, server: Any, forks: Forks, directory: Path) -> None:
        self._server = server
        self._forks = forks
        self._directory = directory

    def trained(self, feed: str, dies_at: int = 0) -> tuple[dict[int, str], list[str]]:
        """The losses by step, and the weights at the end."""
        words = [PROGRAM, self._server.address, feed, self._directory / feed, str(dies_at)]
        done = self._forks.run(
            words, self._directory, ["tensorflow", "keras"], {"PYTHONHASHSEED": "0"}
        )
        assert done.returncode == (-signal.SIGKILL if dies_at else 0), done.stderr[-3000:]
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        losses = {line["step"]: line["loss"] for line in lines if "step" in line}
        return losses, lines[-1].get("weights", [])


def compared(kind: str, dies_at: list[int], forks: Forks, directory: Path) -> int:
    """1. A fit runs to its end.
    2. Others are killed at a step each, and started again.
    3. They have the same losses and weights, to the last bit.
    """
    pipeline = plain() if kind == "plain" else segments()
    names = [kind, *(f"{kind}-{step}" for step in dies_at)]
    with hs.run(
        dict.fromkeys(names, pipeline), workers=0, partitions=1, state_dir=directory / "state"
    ) as server:
        site = Site(server, forks, directory)
        whole, weights = site.trained(kind)
        assert len(whole) > 3 * EVERY and weights
        for step in dies_at:
            before, _ = site.trained(f"{kind}-{step}", step)
            after, resumed = site.trained(f"{kind}-{step}")
            assert before == {k: whole[k] for k in range(1, step + 1)}
            assert min(after, default=step) > step - EVERY
            assert after == {k: whole[k] for k in after} and max(after) == len(whole)
            assert resumed == weights
    return len(whole)


def test_a_fit_that_is_killed_and_started_again_has_the_same_losses_bit_for_bit(
    forks: Forks, tmp_path: Path
) -> None:
    compared("plain", [8], forks, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["plain", "segments"])
def test_at_whatever_step_a_fit_is_killed(kind: str, forks: Forks, tmp_path: Path) -> None:
    compared(kind, [*range(1, 15)], forks, tmp_path)


def test_what_can_not_be_kept_is_refused(tf: Any, tmp_path: Path) -> None:
    import keras

    import headrace.keras

    with hs.run(plain(), workers=0) as server:
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
