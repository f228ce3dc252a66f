"""Examples repeated in proportion to their weights, and a loss that is none the worse for it.

    python examples/resampling.py --out resampling.png

Two trainers fit one number, the mean of a measurement, by gradient descent on resampled batches.
One takes the rows as they come and learns the mean of what it was shown; the other weights each
row's loss by 1 / rate and learns the mean of the source.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np

import headrace
import headrace_server as hs

EXAMPLES = 20_000
BATCH_SIZE = 50
OVERALL_RATE = 0.5
BLUE, ORANGE = "#0072b2", "#e69f00"  # apart for all eyes


def write(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Measurements, and a weight of each that grows with the measurement; returns both."""
    random = np.random.default_rng(1)
    value = random.normal(2.0, 0.5, EXAMPLES)
    weight = np.exp(1.2 * (value - 2)) * random.lognormal(0, 0.3, EXAMPLES)
    np.savez(path, id=np.arange(EXAMPLES), value=value, weight=weight)
    return value, weight


def feed_of(path: Path) -> hs.Pipeline:
    """On the average every second example; of those that weigh more, more."""
    return (
        hs.read_npz(path)
        .shuffle(seed=7)
        .weighted_resample("weight", overall_rate=OVERALL_RATE, warmup=100, seed=1)
        .batch(BATCH_SIZE, allow_smaller_final_batch=True)
    )


def train(address: str) -> tuple[np.ndarray, np.ndarray]:
    """How often each example came, and the two fits after every batch."""
    copies = np.zeros(EXAMPLES, int)
    plain = corrected = 0.0
    fits = []
    with headrace.connect(address) as feed:
        for number, batch in enumerate(feed, 1):
            np.add.at(copies, batch["id"], 1)
            value, rate = batch["value"], batch.rate
            step = max(1 / number, 0.02)
            # The gradients of the mean of (fit - value)² / 2, and of the same weighted by 1 / rate.
            plain -= step * np.mean(plain - value)
            corrected -= step * np.average(corrected - value, weights=1 / rate)
            fits.append((plain, corrected))
    return copies, np.array(fits)


def main() -> None:
    parser = argparse.ArgumentParser(description="Examples repeated in proportion to weights.")
    parser.add_argument("--out", type=Path, default=Path("resampling.png"), help="the picture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "measurements.npz"
        value, weight = write(path)
        with hs.run(feed_of(path)) as server:
            copies, fits = train(server.address)
            server.wait(10)
            dropped = server.stats()["default"]["dropped"]
    print("weight of an example   examples   copies of one   wanted")
    rates = OVERALL_RATE * weight / weight.mean()
    edges = np.quantile(weight, np.linspace(0, 1, 6))
    for low, high in itertools.pairwise(edges):
        among = (weight >= low) & (weight <= high)
        print(
            f"{low:9.2f} to {high:5.2f}   {among.sum():10}   {copies[among].mean():13.2f}   "
            f"{rates[among].mean():6.2f}"
        )
    print(f"\n{EXAMPLES} examples, {copies.sum()} rows, of {dropped['resampled_away']} no copy")
    print(f"mean of the source {value.mean():.3f}")
    print(f"fitted to the rows {fits[-1, 0]:.3f}; with 1 / rate {fits[-1, 1]:.3f}")
    plot(weight, copies, fits, float(value.mean()), options.out)


def plot(
    weight: np.ndarray, copies: np.ndarray, fits: np.ndarray, truth: float, path: Path
) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.6, 3.3), layout="constrained")
    edges = np.linspace(0, 4, 17)
    inside = [(weight >= a) & (weight < b) for a, b in itertools.pairwise(edges)]
    middles = [weight[among].mean() for among in inside]
    means = [copies[among].mean() for among in inside]
    errors = [2 * copies[among].std() / np.sqrt(among.sum()) for among in inside]
    left.plot(edges, OVERALL_RATE * edges / weight.mean(), color=ORANGE, label="declared")
    left.errorbar(
        middles, means, errors, color=BLUE, fmt="o", markersize=4, label="seen, ± 2 errors"
    )
    left.set(xlabel="weight of an example", ylabel="copies of an example", xlim=(0, 4))
    left.set_ylim(bottom=0)
    left.set_title("Copies go with the weight", fontsize=11)
    left.legend(loc="upper left", frameon=False)

    number = np.arange(1, len(fits) + 1)
    right.axhline(truth, color="black", linewidth=1, linestyle="--", label="mean of the source")
    right.plot(number, fits[:, 0], color=ORANGE, label="loss of the rows as they come")
    right.plot(number, fits[:, 1], color=BLUE, label="loss weighted by 1 / rate")
    right.set(xlabel="batch", ylabel="fitted mean", xlim=(0, len(fits)))
    right.set_ylim(truth - 0.25, truth + 0.6)
    right.set_title("Weighting by 1 / rate undoes the bias", fontsize=11)
    right.legend(loc="lower right", frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"\nplotted to {path}")


if __name__ == "__main__":
    main()
