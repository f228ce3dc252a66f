"""The whole of headrace in one command: make data, serve it, train from it with two trainers.

    demo-data/symbols-*.tfrecord ─► server (2 workers) ─► segments + states ─► 2 trainers
                                        ▲                                          │
                                        └──────────────── saved states ◄───────────┘

The same model is trained twice: with the state carried from segment to segment, and with a state
that is forgotten at every border.  At the end it checks that every segment of every epoch was
trained exactly once, and plots both losses to demo-out/loss.png.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import symbols

import headrace_server as hs

TRAINERS = 2
HERE = Path(__file__).resolve().parent
#: The feeds: what becomes of the state at the end of a segment.
MODES = ("carried", "forgotten")
CHANCE = math.log(symbols.SYMBOLS)
BLUE, ORANGE = "#0072b2", "#e69f00"  # apart for all eyes


class Trainer:
    """A trainer's process, and what it said of the feed that it trains from."""

    def __init__(self, number: int, log: Path) -> None:
        self.name = f"trainer {number}"
        self.segments = 0
        self.loss: float | None = None
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
            elif "report" in news:
                report = news["report"]
                self.segments, self.loss = len(report["keys"]), _end_of(report["losses"])
                self.report = report
            else:
                self.segments, self.loss = news["segments"], news["loss"]
        self.ready.set()  # it ended: nobody shall wait for it

    def begin(self, address: str, mode: str) -> None:
        """Train from a feed to its end; then there is a report."""
        self.segments, self.loss, self.report = 0, None, None
        assert self.process.stdin is not None
        job = {"address": address, "feed": mode, "forget": mode == "forgotten"}
        print(json.dumps(job), file=self.process.stdin, flush=True)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def check(self) -> None:
        if self.process.poll() is not None:
            raise SystemExit(f"{self.name} failed:\n{self.log.read_text()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make data, serve it, train from it.")
    parser.add_argument("--quick", action="store_true", help="less data: for the tests")
    parser.add_argument("--data", type=Path, default=Path("demo-data"))
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    options = parser.parse_args()
    sequences, epochs, batch_size = (300, 4, 8) if options.quick else (1200, 3, 16)
    logging.basicConfig(level=logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)

    segments = symbols.write(options.data, sequences, files=4)
    print(
        f"wrote {sequences} sequences of {min(segments.values())} to {max(segments.values())} "
        f"segments to {options.data}/"
    )
    print(f"starting {TRAINERS} trainers with TensorFlow", flush=True)
    trainers = [Trainer(n, options.out / f"trainer-{n}.log") for n in range(TRAINERS)]
    reports = {}
    try:
        for trainer in trainers:
            trainer.ready.wait(300)
            trainer.check()
        feed = symbols.symbols(options.data, epochs, batch_size)
        with hs.run(dict.fromkeys(MODES, feed), workers=2, partitions=4) as server:
            print(
                f"serving at {server.address}: 2 workers, 4 partitions, {epochs} epochs", flush=True
            )
            for mode in MODES:
                print(f"training, state {mode} from segment to segment", flush=True)
                for trainer in trainers:
                    trainer.begin(server.address, mode)
                reports[mode] = watch(server, trainers, sum(segments.values()) * epochs)
    finally:
        for trainer in trainers:
            trainer.end()
    tell(reports)
    for mode in MODES:
        check(mode, reports[mode], segments, epochs)
    plot(reports, options.out / "loss.png")


def watch(server: hs.Server, trainers: list[Trainer], segments: int) -> list[dict[str, Any]]:
    """Show the progress until all trainers report: a bar, or a line every two seconds."""
    terminal = sys.stdout.isatty()
    told, shown = "", time.monotonic()
    while any(trainer.report is None for trainer in trainers):
        time.sleep(0.1)
        server.check()
        for trainer in trainers:
            trainer.check()
        if terminal or time.monotonic() - shown >= 2:
            shown = time.monotonic()
            told = _show(terminal, trainers, segments, told)
    _show(terminal, trainers, segments, told)
    if terminal:
        print()
    return [trainer.report for trainer in trainers if trainer.report is not None]


def _show(terminal: bool, trainers: list[Trainer], segments: int, told: str) -> str:
    """Show how far the trainers are, unless that is what was told last."""
    done = sum(trainer.segments for trainer in trainers)
    losses = "  ".join(f"{t.name}: loss {t.loss:.3f}" for t in trainers if t.loss is not None)
    text = f"{done:6} of {segments} segments  {losses}"
    if terminal:
        filled = 30 * done // segments
        print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}", end="", flush=True)
    elif text != told and done:
        print(text, flush=True)
    return text


def tell(reports: dict[str, list[dict[str, Any]]]) -> None:
    """The table at the end.  Losses are of segments after the first, means of 20 batches."""
    print("state      trainer  batches  segments  first loss  last loss  waited for batches")
    for mode, of_mode in reports.items():
        for number, report in enumerate(of_mode):
            losses = report["losses"]
            print(
                f"{mode:9}  {number:7}  {len(losses):7}  {len(report['keys']):8}  "
                f"{_mean(losses[:20]):10.3f}  {_end_of(losses):9.3f}  "
                f"{report['waited_s'] / report['total_s']:18.1%}"
            )
    print(f"a guess among {symbols.SYMBOLS} symbols has a loss of {CHANCE:.3f}")


def check(mode: str, reports: list[dict[str, Any]], segments: dict[str, int], epochs: int) -> None:
    """Every segment of every epoch, exactly once, in one trainer or the other."""
    wanted = Counter(
        {
            f"{number:05}_of_{count:05}:{name}": epochs
            for name, count in segments.items()
            for number in range(count)
        }
    )
    times = Counter(key for report in reports for key in report["keys"])
    if times != wanted:
        wrong = [key for key in (wanted | times) if times[key] != wanted[key]]
        raise SystemExit(f"{len(wrong)} segments were not trained {epochs} times: {wrong[:10]} …")
    print(
        f"checked: state {mode}, each of {len(wanted)} segments was trained exactly {epochs} times"
    )


def plot(reports: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (mode, of_mode), color in zip(reports.items(), (BLUE, ORANGE), strict=True):
        for number, report in enumerate(of_mode):
            losses = report["losses"]
            smooth = [_mean(losses[max(0, i - 19) : i + 1]) for i in range(len(losses))]
            style = "-" if number == 0 else (0, (2, 1))
            label = f"state {mode}, trainer {number}"
            axes.plot(smooth, color=color, linestyle=style, label=label, linewidth=2)
            axes.plot(losses, color=color, alpha=0.2, linewidth=0.6)
    axes.axhline(CHANCE, color="black", linewidth=0.9, linestyle=(0, (4, 3)), label="a guess")
    axes.set(xlabel="batch", ylabel="loss in segments after the first")
    axes.set_title("A symbol shown at the first step, asked for to the end")
    axes.set_ylim(0, 1.6 * CHANCE)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", ncols=3, fontsize=8)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"plotted the losses to {path}")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _end_of(losses: list[float]) -> float:
    return _mean(losses[-20:])


if __name__ == "__main__":
    main()
