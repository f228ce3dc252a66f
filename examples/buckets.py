"""Padding with and without buckets: one file of sequences, served by three feeds.

python examples/buckets.py --out buckets.png

batch      32 sequences as they come
buckets    32 sequences of like length
budget     as many sequences of like length as fit into 4000 padded steps
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import headrace
import headrace_server as hs

CHANNELS = 8
BATCH_SIZE = 32
BOUNDARIES = [25, 40, 60, 85, 120, 170]
BUDGET = 4000
BLUE, ORANGE = "#0072b2", "#e69f00"  # apart for all eyes


def write(path: Path, sequences: int = 4000) -> np.ndarray:
    """Sequences of very unequal length, with a label; returns the lengths."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(4.0, 0.6, sequences), 8, 300).astype(np.int64)
    steps = random.normal(0, 1, (lengths.sum(), CHANNELS)).astype(np.float32)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    up = np.add.reduceat(steps[:, 0], ends[:-1]) > 0
    np.savez(path, steps=steps, ends=ends, up=up)
    return lengths


def feeds(path: Path) -> dict[str, hs.Pipeline]:
    """The three ways to batch the same shuffled sequences."""
    sequences = hs.read_npz(path, ragged={"steps": "ends"}).shuffle(seed=7)
    return {
        # Sorted into one bucket, which is .batch that also tells the lengths.
        "batch": sequences.bucket_by_sequence_length(
            "steps", BATCH_SIZE, [10**9], dynamic_pad=True, allow_smaller_final_batch=True
        ),
        "buckets": sequences.bucket_by_sequence_length(
            "steps", BATCH_SIZE, BOUNDARIES, dynamic_pad=True, allow_smaller_final_batch=True
        ),
        "budget": sequences.bucket_by_sequence_length(
            "steps",
            None,
            BOUNDARIES,
            dynamic_pad=True,
            allow_smaller_final_batch=True,
            max_padded_elements=BUDGET,
        ),
    }


def train(address: str, feed_name: str) -> dict[str, np.ndarray]:
    """Fit a logistic model on each sequence's sum; what every batch looked like."""
    rows, widths, real = [], [], []
    weights = np.zeros(CHANNELS)
    with headrace.connect(address, feed=feed_name) as feed:
        for batch in feed:
            sums = batch["steps"].sum(axis=1) / np.sqrt(batch.length)[:, None]
            guess = 1 / (1 + np.exp(-sums @ weights))
            weights -= 0.5 * sums.T @ (guess - batch["up"]) / batch.rows
            rows.append(batch.rows)
            widths.append(batch["steps"].shape[1])
            real.append(batch.length.sum())
    return {"rows": np.array(rows), "widths": np.array(widths), "real": np.array(real)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Padding with and without buckets.")
    parser.add_argument("--out", type=Path, default=Path("buckets.png"), help="the picture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "sequences.npz"
        lengths = write(path)
        with hs.run(feeds(path)) as server:
            seen = {name: train(server.address, name) for name in ("batch", "buckets", "budget")}
            server.wait(10)
            padding = server.stats()["buckets"]["padding"]
    print("feed     batches  rows per batch  padded steps  of them padding  largest batch")
    for name, batches in seen.items():
        assert batches["rows"].sum() == len(lengths)
        sizes = batches["rows"] * batches["widths"]
        span = f"{batches['rows'].min()}-{batches['rows'].max()}"
        print(
            f"{name:7}  {len(sizes):7}  {span:>14}  {sizes.sum():12,}  "
            f"{1 - lengths.sum() / sizes.sum():15.1%}  {sizes.max():7,} steps"
        )
    print("\nbucket  padded steps  of them padding       (what the server counts, feed 'buckets')")
    for bucket, (padded, real) in padding.items():
        print(f"{bucket:>6}  {padded:12,}  {1 - real / padded:15.1%}")
    plot(lengths, seen, options.out)


def plot(lengths: np.ndarray, seen: dict[str, dict[str, np.ndarray]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(8.6, 3.3), layout="constrained", width_ratios=(1, 1.15)
    )
    left.hist(lengths, bins=np.arange(0, 305, 5), color=BLUE)
    for boundary in BOUNDARIES:
        left.axvline(boundary, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    left.set(xlabel="length of a sequence (steps)", ylabel="sequences", xlim=(0, 300))
    left.set_title("Lengths, and the boundaries of 7 buckets", fontsize=11)

    labels = {
        "batch": f"batch\n{BATCH_SIZE} rows",
        "buckets": f"buckets\n{BATCH_SIZE} rows",
        "budget": f"buckets\n≤ {BUDGET} steps",
    }
    real = lengths.sum() / 1000
    for place, (name, batches) in enumerate(seen.items()):
        sizes = batches["rows"] * batches["widths"]
        padded = sizes.sum() / 1000
        right.barh(place, real, color=BLUE)
        right.barh(place, padded - real, left=real, color=ORANGE)
        right.annotate(
            f"{1 - real / padded:.1%} padding\nlargest batch: {sizes.max():,} steps",
            (padded, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
        labels[name] += f"\n{len(batches['rows'])} batches"
    right.set_yticks(range(len(seen)), [labels[name] for name in seen])
    right.invert_yaxis()
    right.set_xlim(0, right.get_xlim()[1] * 1.35)
    right.set_xlabel("steps in all batches of an epoch (thousands)")
    right.set_title("What a trainer computes on", fontsize=11)
    right.text(real / 2, 0, "data", color="white", ha="center", va="center")
    right.text(real + 15, 0, "padding", va="center")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"\nplotted to {path}")


if __name__ == "__main__":
    main()
