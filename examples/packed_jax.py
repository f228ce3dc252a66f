"""A linear recurrence in JAX on packed lanes, where each reset begins anew, beside unpacked lanes.

python examples/packed_jax.py

    h[t] = a[t] h[t-1] + b[t]        at a reset h[t-1] is the initial state, so a[t] becomes 0

All steps are computed at once, by an associative scan.  A rank has batches of one shape, with empty
rows at the end, so the step is compiled once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from recall import EPOCHS, STEPS, UNITS, Report, packed_lanes
from stateful_jax import Weights, descended, initial, layer

import headrace
import headrace_server as hs

SHAPES = {"gate": (2, UNITS), "new": (2, UNITS), "hidden": (UNITS, UNITS), "out": (UNITS, 1)}


def loss_of(
    weights: Weights,
    x: jax.Array,
    wanted: jax.Array,
    real: jax.Array,
    resets: jax.Array,
    h: jax.Array,
    begin: jax.Array,
) -> tuple[jax.Array, Any]:
    a = jax.nn.sigmoid(2 + layer(weights, "gate", x))  # it begins with a long memory
    b = (1 - a) * jnp.tanh(layer(weights, "new", x))
    new = resets[:, :, None]
    b = jnp.where(new, a * begin[:, None] + b, b)
    a = jnp.where(new, 0, a)
    b = b.at[:, 0].add(a[:, 0] * h)
    _, steps = jax.lax.associative_scan(
        lambda one, after: (one[0] * after[0], after[0] * one[1] + after[1]), (a, b), axis=1
    )
    logits = layer(weights, "out", jnp.tanh(layer(weights, "hidden", steps)))[:, :, 0]
    losses = (jax.nn.softplus(logits) - wanted * logits) * real
    return losses.sum() / real.sum(), (losses.sum(), steps[:, -1])


@jax.jit
def step(weights: Weights, moments: tuple, count: int, *batch: jax.Array) -> tuple:
    (loss, (_, h)), slope = jax.value_and_grad(loss_of, has_aux=True)(weights, *batch)
    return *descended(weights, moments, count, slope), loss, h


def arrays(batch: Any, packed: bool) -> tuple[jax.Array, ...]:
    x, bit, h = batch.sequences["x"], batch.context["bit"], batch.state("h")
    if packed:
        ids, begin = batch.segment_ids, batch.initial_state("h")
        wanted = jnp.take_along_axis(bit, jnp.maximum(ids - 1, 0), axis=1)
        return x, wanted, ids > 0, batch.resets, h, begin
    real = jnp.arange(STEPS) < batch.length[:, None]
    wanted = jnp.repeat(bit[:, None], STEPS, axis=1)
    return x, wanted, real, jnp.zeros_like(real), h, jnp.zeros_like(h[:1])


def train(packed: bool) -> None:
    losses = jax.jit(loss_of)
    weights, report = initial(jax.random.key(1), SHAPES), Report()
    moments = (jax.tree.map(jnp.zeros_like, weights),) * 2
    feeds = {name: packed_lanes(("h",), packed, n) for name, n in EPOCHS.items()}
    rank: dict[str, Any] = {"framework": "jax", "rank": 0, "world_size": 1}
    with hs.run(feeds) as server:
        untrained = steps = 0.0
        with headrace.connect(server.address, feed="once", **rank) as feed:
            for batch in feed:
                given = arrays(batch, packed)
                _, (total, h) = losses(weights, *given)
                batch.save_state("h", h)
                untrained, steps = untrained + float(total), steps + float(given[2].sum())
        with headrace.connect(server.address, feed="train", **rank) as feed:
            for count, batch in enumerate(feed, start=1):
                given = arrays(batch, packed)
                weights, moments, loss, h = step(weights, moments, count, *given)
                batch.save_state("h", h)
                report.add(float(loss))
    report.compared(untrained / steps, packed)


if __name__ == "__main__":
    train(packed=False)
    train(packed=True)
