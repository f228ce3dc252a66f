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
#: Of packed lanes: a feed that shows the losses without training, and one to train from.
EPOCHS = {"once": 1, "train": 14}


def recall(
    states: tuple[str, ...], epochs: int = 7, lengths: tuple[int, int] = (40, 80), **options: Any
) -> hs.Pipeline:
    """The feed; every state is ``UNITS`` numbers."""
    random = np.random.default_rng(1)
    return (
        hs.from_examples([example(random, number, *lengths) for number in range(160)])
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


def example(random: np.random.Generator, number: int, least: int, most: int) -> dict[str, Any]:
    x = np.zeros((random.integers(least, most + 1), 2), np.float32)
    x[:, 0] = random.choice([-1, 1], len(x))
    x[0, 1] = 1
    return {"name": f"recall-{number}", "x": x, "bit": np.float32(x[0, 0] > 0)}


def packed_lanes(states: tuple[str, ...], pack: bool, epochs: int) -> hs.Pipeline:
    """Lanes of short sequences, packed or not."""
    return recall(states, epochs, (3, 27), order="lanes", pack=pack)


class Report:
    """Prints the mean loss of every 50 batches."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        if len(self.losses) % 50 == 0:
            print(f"batch {len(self.losses):4}  loss {np.mean(self.losses[-50:]):.3f}", flush=True)

    def compared(self, untrained: float, packed: bool) -> None:
        name, loss = "packed" if packed else "unpacked", np.mean(self.losses[-20:])
        print(f"{name}: {untrained:.5f} before, {loss:.3f} after {len(self.losses)} batches")

    def end(self) -> None:
        print(f"at the end {np.mean(self.losses[-20:]):.3f}; guessing gives more than {GUESSING}")
