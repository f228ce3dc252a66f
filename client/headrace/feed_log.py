"""Log numbers of a feed to any logger: waiting time, rows per second, queue and padding.

    each batch ─► FeedLog.took ─ every 10 s ─► {"feed/rows_per_s": 812.0, …} ─► logger

All of them are known to the trainer itself, so nothing is asked of a server.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from headrace_proto.layout import array_at

Numbers = dict[str, float]


class FeedLog:
    """Numbers of the batches since it was last asked."""

    def __init__(
        self, feed: Any, send: Callable[[Numbers, int], object] | None, every_s: float = 0.0
    ) -> None:
        """``send`` takes the numbers and how many batches there were; None: an adapter asks."""
        # weak: the feed has this log, and a cycle would keep it open
        self._feed: Any = weakref.proxy(feed)
        self._send, self._every_s = send, every_s
        self.asked = send is None
        self._batches = 0
        self._begin(*feed._readings()[:2])

    def _begin(self, now: float, waited_s: float) -> None:
        self._since, self._waited_s = now, waited_s
        self._rows = self._steps = self._padded = 0

    def took(self, batch: Any) -> None:
        """Count a batch, and send the numbers if it is time."""
        self._batches += 1
        self._rows += batch.rows
        slot = batch._slots.get("@length")
        if slot is not None and (width := self._feed._width(batch)):
            self._padded += batch.rows * width
            self._steps += int(array_at(batch._block, slot).sum())
        if self._send is not None and self._feed._readings()[0] - self._since >= self._every_s:
            self._send(self.numbers(), self._batches)

    def numbers(self) -> Numbers:
        """Return the numbers since the last call; empty where there was no batch."""
        if not self._rows:
            return {}
        now, total_s, queue = self._feed._readings()
        seconds = max(now - self._since, 1e-9)
        waited_s = max(total_s - self._waited_s, 0.0)  # a feed that was taken back counts anew
        found = {
            "feed/waited_s": waited_s,
            "feed/waited_share": min(waited_s / seconds, 1.0),
            "feed/rows_per_s": self._rows / seconds,
            "feed/queue": float(queue),
        }
        if self._padded:
            found["feed/padding"] = 1 - self._steps / self._padded
        self._begin(now, total_s)
        return found


def sender(logger: Any) -> Callable[[Numbers, int], object]:
    """Return the call that passes numbers to a logger; TypeError for an unknown kind of logger."""
    if isinstance(logger, logging.Logger):
        return lambda numbers, batches: logger.info("%s", numbers)
    if hasattr(logger, "add_scalar"):  # TensorBoard
        return lambda numbers, batches: [
            logger.add_scalar(name, value, batches) for name, value in numbers.items()
        ]
    for name in ("log", "log_metrics"):  # wandb; mlflow, Lightning's loggers
        if callable(method := getattr(logger, name, None)):
            return lambda numbers, batches: method(numbers)
    if callable(logger):
        return lambda numbers, batches: logger(numbers)
    raise TypeError(
        f"logger={logger!r:.80}: give something with log(dict), log_metrics(dict) or add_scalar, "
        "or a function of a dict"
    )
