"""Training loops that fetch ahead, as a process that takes a checkpoint, goes on, and kills itself.

    python loops.py ADDRESS LOOP@FEED …

Prints a JSON line for each batch that was trained and for each checkpoint.  Each loop goes a few
batches beyond its checkpoint; then SIGKILL ends them all, with batches fetched and not committed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import headrace

#: Batches that are trained before the checkpoint, and in all.
CHECKPOINT, KILL = 5, 8

#: ``step(rows)`` trains, and returns whether to take a checkpoint; ``keep(token)`` takes it.
Step = Callable[[Any], bool]
Keep = Callable[[Any], None]


class Killed(Exception):
    """Raised at the step at which the process dies."""


def ahead(batches: Iterable[Any], count: int) -> Iterator[Any]:
    """Yield the batches; fetch ``count`` of them before the first is trained."""
    waiting: deque[Any] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def plain(feed: headrace.Feed, step: Step, keep: Keep) -> None:
    for batch in feed:
        if step(batch["i"]):
            keep(feed.snapshot())


def one_ahead(feed: headrace.Feed, step: Step, keep: Keep) -> None:
    """Yield the batches as Lightning does, which fetches one ahead."""
    for batch in ahead(feed, 1):
        due = step(batch["i"])
        batch.commit()
        if due:
            keep(feed.snapshot())


def upto(feed: headrace.Feed, step: Step, keep: Keep) -> None:
    for batch in ahead(feed, 3):
        if step(batch["i"]):
            keep(feed.snapshot(upto=batch))


def dataset(feed: headrace.Feed, step: Step, keep: Keep) -> None:
    for element in feed.as_dataset(tokens=True).prefetch(3):
        due = step(element["i"].numpy())
        feed.commit(element["token"])
        if due:
            keep(feed.state_dict())


def fit(feed: headrace.Feed, step: Step, keep: Keep) -> None:
    import keras

    import headrace.keras

    due = False

    class Net(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            nonlocal due
            due = step(data[1].numpy())
            return super().train_step(data)

    class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if due:
                keep(feed.snapshot())

    model = Net([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    data = feed.as_dataset().map(lambda batch: (batch["i"][:, None], batch["i"]))
    model.fit(
        data,
        steps_per_epoch=3,
        epochs=KILL,
        verbose=0,
        callbacks=[headrace.keras.CommitTrained(feed), Checkpoint()],
    )


LOOPS = {loop.__name__: loop for loop in (plain, one_ahead, upto, dataset, fit)}


def tell(**values: object) -> None:
    print(json.dumps(values), flush=True)


def run(loop: str, feed: headrace.Feed) -> None:
    """Run a loop until it is killed."""
    trained = 0

    def step(rows: Any) -> bool:
        nonlocal trained
        if trained == KILL:
            raise Killed
        trained += 1
        tell(feed=feed.name, rows=[int(row) for row in rows])
        return trained == CHECKPOINT

    with contextlib.suppress(Killed):
        LOOPS[loop](feed, step, lambda token: tell(feed=feed.name, token=token))


def main() -> None:
    address, *names = sys.argv[1:]
    feeds = []
    for name in names:
        loop = name.partition("@")[0]
        feed = headrace.connect(
            address,
            feed=name.replace("@", "-"),
            commit="on_next" if loop == "plain" else "explicit",
            framework="tf" if loop in ("dataset", "fit") else "numpy",
            timeout=60,
        )
        feeds.append(feed)
        run(loop, feed)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
