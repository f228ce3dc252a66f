"""Training through time in JAX: a GRU of a few lines whose state the feed carries.

python examples/stateful_jax.py

Without small batches every batch has one shape, and ``jit`` compiles the step once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from recall import RATE, STEPS, UNITS, Report, recall

import headrace
import headrace_server as hs

SHAPES = {"gates": (2 + UNITS, 2 * UNITS), "new": (2 + UNITS, UNITS), "out": (UNITS, 1)}
Weights = dict[str, tuple[jax.Array, jax.Array]]


def initial(key: jax.Array, shapes: dict[str, tuple[int, int]] = SHAPES) -> Weights:
    keys = jax.random.split(key, len(shapes))
    return {
        name: (jax.random.normal(k, shape) / shape[0] ** 0.5, jnp.zeros(shape[1]))
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def layer(weights: Weights, name: str, *values: jax.Array) -> jax.Array:
    matrix, bias = weights[name]
    return jnp.concatenate(values, axis=-1) @ matrix + bias


def gru(weights: Weights, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    keep, reset = jnp.split(jax.nn.sigmoid(layer(weights, "gates", x, h)), 2, axis=-1)
    h = keep * h + (1 - keep) * jnp.tanh(layer(weights, "new", x, reset * h))
    return h, layer(weights, "out", h)[:, 0]


def loss_of(weights: Weights, x: jax.Array, bit: jax.Array, length: jax.Array, h: jax.Array):
    h, logits = jax.lax.scan(lambda h, x: gru(weights, h, x), h, x.swapaxes(0, 1))
    mask = jnp.arange(STEPS)[:, None] < length
    losses = jax.nn.softplus(logits) - bit * logits
    return (losses * mask).sum() / mask.sum(), h


@jax.jit
def step(weights: Weights, moments: tuple, count: int, *batch: jax.Array) -> tuple:
    """One step; the loss, and the states after these segments."""
    (loss, h), slope = jax.value_and_grad(loss_of, has_aux=True)(weights, *batch)
    return *descended(weights, moments, count, slope), loss, h


def descended(weights: Weights, moments: tuple, count: int, slope: Weights) -> tuple:
    """The weights and moments after a step of Adam."""
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], slope)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, moments[1], slope)
    rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(
        lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), weights, mean, square
    )
    return weights, (mean, square)


def main() -> None:
    weights, report = initial(jax.random.key(1)), Report()
    moments = (jax.tree.map(jnp.zeros_like, weights),) * 2
    with (
        hs.run(recall(states=("h",), allow_small_batch=False)) as server,
        headrace.connect(server.address, framework="jax") as feed,
    ):
        for count, batch in enumerate(feed, start=1):
            inputs = batch.sequences["x"], batch.context["bit"], batch.length, batch.state("h")
            weights, moments, loss, h = step(weights, moments, count, *inputs)
            batch.save_state("h", h)
            report.add(float(loss))
    report.end()


if __name__ == "__main__":
    main()
