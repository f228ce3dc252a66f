"""The whole of headrace in one command: make data, serve it, train from it with two trainers.

    demo-data/walks-*.tfrecord ─► server (router, 2 workers) ─► 2 trainers ─► demo-out/loss.png

At the end it checks that every example of every epoch was trained exactly once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import walks

import headrace_server as hs

TRAINERS = 2
HERE = Path(__file__).resolve().parent


class Trainer:
    """A trainer's process, and the last it said."""

    def __init__(self, number: int, log: Path) -> None:
        self.name = f"trainer {number}"
        self.rows = 0
        self.loss = float("nan")
        self.report: dict[str, Any] | None = None
        self.ready = threading.Event()
        self.log = log
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "train.py", "--json", f"--seed={number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            )
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            news = json.loads(line)
            if "ready" in news:
                self.ready.set()
            elif "losses" in news:
                self.report = news
                self.rows = len(news["ids"])
                self.loss = _mean(news["losses"][-20:])
            else:
                self.rows, self.loss = news["rows"], news["loss"]
        self.ready.set()  # it ended: nobody shall wait for it

    def begin(self, address: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(address + "\n")
        self.process.stdin.close()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def check(self) -> None:
        if self.process.poll() not in (None, 0):
            raise SystemExit(f"{self.name} failed:\n{self.log.read_text()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make data, serve it, train from it.")
    parser.add_argument("--quick", action="store_true", help="less data: for the tests")
    parser.add_argument("--data", type=Path, default=Path("demo-data"))
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    options = parser.parse_args()
    examples, epochs, batch_size = (512, 2, 32) if options.quick else (6000, 5, 32)
    logging.basicConfig(level=logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)

    print(f"writing {examples} walks to {options.data}/", flush=True)
    walks.write(options.data, examples, files=4)
    print(f"starting {TRAINERS} trainers with TensorFlow", flush=True)
    trainers = [Trainer(n, options.out / f"trainer-{n}.log") for n in range(TRAINERS)]
    try:
        for trainer in trainers:
            trainer.ready.wait(300)
            trainer.check()
        feed = walks.walks(options.data, epochs, batch_size)
        with hs.run(feed, workers=2, partitions=4) as server:
            print(
                f"serving at {server.address}: 2 workers, 4 partitions, {epochs} epochs", flush=True
            )
            for trainer in trainers:
                trainer.begin(server.address)
            watch(server, trainers, examples * epochs)
    finally:
        for trainer in trainers:
            trainer.end()
    reports = [trainer.report for trainer in trainers if trainer.report is not None]
    tell(reports)
    check(reports, examples, epochs)
    plot(reports, options.out / "loss.png")


def watch(server: hs.Server, trainers: list[Trainer], rows: int) -> None:
    """Show the progress until all trainers have ended: a bar, or a line every two seconds."""
    terminal = sys.stdout.isatty()
    told, shown = "", time.monotonic()
    while any(trainer.process.poll() is None or trainer.reader.is_alive() for trainer in trainers):
        time.sleep(0.1)
        server.check()
        for trainer in trainers:
            trainer.check()
        if terminal or time.monotonic() - shown >= 2:
            shown = time.monotonic()
            told = _show(terminal, trainers, rows, told)
    _show(terminal, trainers, rows, told)
    if terminal:
        print()


def _show(terminal: bool, trainers: list[Trainer], rows: int, told: str) -> str:
    """Show how far the trainers are, unless that is what was told last."""
    done = sum(trainer.rows for trainer in trainers)
    losses = "  ".join(f"{trainer.name}: loss {trainer.loss:.3f}" for trainer in trainers)
    text = f"{done:6} of {rows} rows  {losses}"
    if terminal:
        filled = 30 * done // rows
        print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}", end="", flush=True)
    elif text != told and done:
        print(text, flush=True)
    return text


def tell(reports: list[dict[str, Any]]) -> None:
    """The table at the end.  Losses are means of 10 batches."""
    print("trainer  batches    rows  first loss  last loss  waited for batches")
    for number, report in enumerate(reports):
        losses = report["losses"]
        print(
            f"{number:7}  {len(losses):7}  {len(report['ids']):6}  {_mean(losses[:10]):10.3f}  "
            f"{_mean(losses[-10:]):9.3f}  {report['waited_s'] / report['total_s']:18.1%}"
        )


def check(reports: list[dict[str, Any]], examples: int, epochs: int) -> None:
    """Every example of every epoch, exactly once, in one trainer or the other."""
    times = Counter(number for report in reports for number in report["ids"])
    if times != Counter(dict.fromkeys(range(examples), epochs)):
        wrong = [number for number in range(examples) if times[number] != epochs]
        raise SystemExit(f"{len(wrong)} examples were not trained {epochs} times: {wrong[:10]} …")
    rows = examples * epochs
    print(f"checked: each of {examples} examples was trained exactly {epochs} times, {rows} rows")


def plot(reports: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for number, report in enumerate(reports):
        losses = report["losses"]
        smooth = [_mean(losses[max(0, i - 19) : i + 1]) for i in range(len(losses))]
        (line,) = axes.plot(smooth, label=f"trainer {number}", linewidth=2)
        axes.plot(losses, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set(xlabel="batch", ylabel="loss", title="Two trainers, one feed")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"plotted the losses to {path}")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


if __name__ == "__main__":
    main()
