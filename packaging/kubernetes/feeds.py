"""What the pod serves until you replace it: sequences, each made from its number alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import headrace_server as hs

SEQUENCES = 1000
UNITS = 16


def examples() -> Iterator[dict[str, object]]:
    for number in range(SEQUENCES):
        random = np.random.default_rng(number)
        steps = random.normal(size=(int(random.integers(20, 200)), 8)).astype("float32")
        yield {"id": f"sequence-{number}", "steps": steps, "label": number % 4}


def feeds() -> hs.Pipeline:
    return hs.from_function(examples).batch_sequences_with_states(
        input_key="id",
        input_sequences=["steps"],
        input_context=["label"],
        initial_states={"h": hs.zeros((UNITS,), "float32")},
        num_unroll=20,
        batch_size=16,
    )
