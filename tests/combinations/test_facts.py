"""Facts of rows as tensors of a framework, and what is said of those that a feed has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

_EXAMPLES = [
    {"key": f"k{n}", "x": np.arange(3 + n % 4), "n": n, "y": n % 2, "w": 1 + n % 3}
    for n in range(40)
]
feed = (
    hs.from_examples(_EXAMPLES)
    .weighted_resample("w", 1.0, group=8)
    .stratified_sample("y", [0.4, 0.6])
    .with_origin()
    .batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=["n", "y"],
        initial_states={"s": hs.zeros((2,), "float32")},
        num_unroll=2,
        batch_size=4,
        make_keys_unique=True,
    )
)


def _numbers(tensor: Any) -> list[Any]:
    return list(np.asarray(tensor).tolist())


@pytest.mark.parametrize("framework", [pytest.param("tf", marks=pytest.mark.tf), "torch", "jax"])
def test_facts_are_tensors_of_the_framework(framework: str) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    with (
        hs.run(feed) as server,
        headrace.connect(server.address, framework=framework, timeout=PATIENCE_S) as trainer,
    ):
        batch = next(trainer)
        assert _numbers(batch.origin) == _numbers(batch.context["n"])
        assert _numbers(batch.label) == _numbers(batch.context["y"])
        assert np.asarray(batch.rate).dtype == np.float32
        assert type(batch.origin) is type(batch.length)
        batch.save_state("s", batch.state("s"))
        if framework == "tf":
            element = next(iter(trainer.as_dataset()))
            assert _numbers(element["origin"]) == _numbers(element["context"]["n"])
            assert element["rate"].dtype.name == "float32"
