"""A task that needs states: the first step shows a bit, and every later one asks for it.

    step      0      1      2      3   …    60
    flag      1      0      0      0         0      x = [bit, flag]
    bit       B      ?      ?      ?         ?      ? are random bits that mean nothing
    answer    B      B      B      B         B

A segment is ten steps, so most segments do not hold the answer.  A model that forgets between
segments guesses there, and its loss stays above 0.58; with its state carried it gets near 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import headrace_server as hs

STEPS = 10
UNITS = 24
RATE = 0.02
GUESSING = 0.58


def recall(states: tuple[str, ...], epochs: int = 7, **options: Any) -> hs.Pipeline:
    """The feed; every state is ``UNITS`` numbers."""
    random = np.random.default_rng(1)
    return (
        hs.from_examples([example(random, number) for number in range(160)])
        .shuffle(seed=7)
        .repeat(epochs)
        .batch_sequences_with_states(
            input_key="name",
            input_sequences=["x"],
            input_context=["bit"],
            initial_states={name: hs.zeros((UNITS,), "float32") for name in states},
            num_unroll=STEPS,
            batch_size=16,
            **options,
        )
    )


def example(random: np.random.Generator, number: int) -> dict[str, Any]:
    x = np.zeros((random.integers(40, 81), 2), np.float32)
    x[:, 0] = random.choice([-1, 1], len(x))
    x[0, 1] = 1
    return {"name": f"recall-{number}", "x": x, "bit": np.float32(x[0, 0] > 0)}


class Report:
    """Prints the mean loss of every 50 batches."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        if len(self.losses) % 50 == 0:
            print(f"batch {len(self.losses):4}  loss {np.mean(self.losses[-50:]):.3f}", flush=True)

    def end(self) -> None:
        print(f"at the end {np.mean(self.losses[-20:]):.3f}; guessing gives more than {GUESSING}")
