"""The mix of classes in the batches, before and after sampling, and changed while the feed runs.

python examples/sampling.py --out sampling.png

source      the batches as they come: 80 %, 15 % and 5 % of three classes
stratified  examples rejected so that the classes come alike, proportions of the source unknown
exact       class counts of every batch drawn, examples waiting for their turn
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import headrace
import headrace_server as hs

SOURCE = (0.80, 0.15, 0.05)
ALIKE = (1 / 3, 1 / 3, 1 / 3)
LATER = (0.2, 0.2, 0.6)
BATCH_SIZE = 64
BATCHES, CHANGE_AT = 200, 80
COLOURS = ("#0072b2", "#e69f00", "#009e73")  # apart for all eyes


def write(path: Path, examples: int = 20_000) -> None:
    """Points of three classes, most of them of the first."""
    random = np.random.default_rng(1)
    label = random.choice(len(SOURCE), examples, p=SOURCE)
    angle = 2 * np.pi * label / len(SOURCE)
    point = np.stack([np.cos(angle), np.sin(angle)], 1) + random.normal(0, 0.5, (examples, 2))
    np.savez(path, point=point.astype(np.float32), label=label.astype(np.int32))


def feeds(path: Path) -> dict[str, hs.Pipeline]:
    points = hs.read_npz(path).shuffle(seed=7).repeat()
    return {
        "source": points.batch(BATCH_SIZE),
        "stratified": points.stratified_sample("label", ALIKE, BATCH_SIZE, seed=1),
        "exact": points.stratified_sample_unknown_dist("label", ALIKE, BATCH_SIZE, seed=1),
    }


class Classifier:
    """A softmax regression, one step of gradient descent per batch."""

    def __init__(self) -> None:
        self.weights = np.zeros((3, len(SOURCE)))

    def scores(self, points: np.ndarray) -> np.ndarray:
        return np.concatenate([points, np.ones((len(points), 1))], 1) @ self.weights

    def step(self, points: np.ndarray, labels: np.ndarray) -> None:
        scores = self.scores(points)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(labels)), labels] -= 1
        inputs = np.concatenate([points, np.ones((len(points), 1))], 1)
        self.weights -= inputs.T @ share / len(labels)


def train(address: str, feed_name: str, change: bool) -> tuple[np.ndarray, int | None, Classifier]:
    """Train on some batches: the shares of the classes in each, and where the target changed."""
    model, since = Classifier(), None
    shares = np.zeros((BATCHES, len(SOURCE)))
    with headrace.connect(address, feed=feed_name) as feed:
        for number, batch in zip(range(BATCHES), feed, strict=False):
            labels = batch["label"]
            shares[number] = np.bincount(labels, minlength=len(SOURCE)) / batch.rows
            if number < CHANGE_AT:  # the same target for the model of every feed
                model.step(batch["point"], labels)
            if change and number == CHANGE_AT:
                since = feed.set_target_probs(LATER)[0]
    return shares, since, model


def main() -> None:
    parser = argparse.ArgumentParser(description="The mix of classes before and after sampling.")
    parser.add_argument("--out", type=Path, default=Path("sampling.png"), help="the picture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "points.npz"
        write(path)
        with np.load(path) as file:
            points, labels = file["point"], file["label"]
        with hs.run(feeds(path)) as server:
            address = server.address
            seen = {name: train(address, name, name != "source") for name in feeds(path)}
            classes = server.stats()["stratified"]["classes"]
    print("feed        classes before and after the change     recall of the classes")
    for name, (shares, since, model) in seen.items():
        before, after = shares[:since], shares[since or 0 :]
        guess = model.scores(points).argmax(axis=1)
        recall = [float((guess[labels == k] == k).mean()) for k in range(len(SOURCE))]
        print(f"{name:10}  {_mix(before)}  {_mix(after) if since else '':20}  {_mix(recall)}")
    kept = np.array(classes["accepted"]) / np.add(classes["accepted"], classes["rejected"])
    print(f"\nshare of each class that 'stratified' accepted: {_mix(kept)}")
    plot({name: (shares, since) for name, (shares, since, _) in seen.items()}, options.out)


def _mix(shares: object) -> str:
    values = np.asarray(shares)
    means = values.mean(axis=0) if values.ndim == 2 else values
    return "  ".join(f"{share:4.0%}" for share in means).ljust(18)


def plot(seen: dict[str, tuple[np.ndarray, int | None]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    titles = {
        "source": "batch: the source's own mix",
        "stratified": "stratified_sample",
        "exact": "stratified_sample_unknown_dist",
    }
    figure, panels = pyplot.subplots(
        len(seen), 1, figsize=(8.6, 5.0), layout="constrained", sharex=True
    )
    for axes, (name, (shares, since)) in zip(panels, seen.items(), strict=True):
        # Means over 5 batches: a batch of 64 rows alone scatters by some 6 points.
        smooth = shares.reshape(-1, 5, len(SOURCE)).mean(axis=1)
        at = np.arange(len(smooth)) * 5 + 2
        for label, colour in enumerate(COLOURS):
            start = 0 if since is None else since
            for target, first, last in ((ALIKE, 0, start), (LATER, start, BATCHES)):
                if since is not None:
                    axes.hlines(target[label], first, last, colour, linestyle="--", linewidth=1)
            axes.plot(at, smooth[:, label], color=colour, linewidth=1.8, label=f"class {label}")
        if since is not None:
            axes.axvline(since, color="black", linewidth=1)
            axes.annotate(
                f"set at batch {CHANGE_AT}, reaches no batch before {since}",
                (since, 0.9),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_title(titles[name], fontsize=10, loc="left")
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 0.5, 1])
        axes.set_xlim(0, BATCHES)
        axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("batch")
    figure.supylabel("share of the rows (dashed: target)", fontsize=10)
    panels[0].legend(loc="center right", bbox_to_anchor=(1, 0.5), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"\nplotted to {path}")


if __name__ == "__main__":
    main()
