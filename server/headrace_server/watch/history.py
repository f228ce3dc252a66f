"""What a server did lately: rates between looks, a few minutes of them.

    status, status … ─► add() ─► [ points ] ─► points(since), rates()

A point is of the span between two looks.  The stall ratio of a trainer is the part of its time in
which it waited; that of a feed is the same of all its trainers that were there at both looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["EVERY_S", "History"]

#: The time between two looks.
EVERY_S = 2.0
_MOST = 180
#: Rates are of the last seconds.
_RECENT_S = 10.0

#: Totals of a feed that become rates, and where they stand.
_TOTALS: dict[str, Callable[[Any], float]] = {
    "read": lambda feed: feed["read"],
    "made": lambda feed: feed["made"]["rows"],
    "bytes": lambda feed: feed["made"]["bytes"],
    "rows": lambda feed: feed["rows"],
    "batches": lambda feed: feed["batches"],
    "dropped": lambda feed: sum(feed["dropped"].values()),
}


class History:
    """The points of one server."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def add(self, status: Mapping[str, Any]) -> None:
        """Another look."""
        last, self._last = self._last, status
        if last is None or status["at"] <= last["at"]:
            return
        span = status["at"] - last["at"]
        feeds = {
            name: _feed_point(feed, last["feeds"][name], span)
            for name, feed in status["feeds"].items()
            if name in last["feeds"]
        }
        before = {worker["worker"]: worker for worker in last["workers"]}
        workers = {
            str(worker["worker"]): _shares(worker, before[worker["worker"]])
            for worker in status["workers"]
            if worker["worker"] in before
        }
        self._points.append({"at": status["at"], "span": span, "feeds": feeds, "workers": workers})

    def points(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Those after a moment, the oldest first."""
        return [point for point in list(self._points) if point["at"] > since]

    def rates(self) -> dict[str, Any]:
        """Averages of the last seconds, as one point; empty while there are none."""
        points = list(self._points)
        if not points:
            return {"feeds": {}, "workers": {}}
        recent = [p for p in points if p["at"] > points[-1]["at"] - _RECENT_S]
        newest = points[-1]
        return {
            "feeds": {
                name: _mean_feed(
                    [p["feeds"][name] for p in recent if name in p["feeds"]], newest["feeds"][name]
                )
                for name in newest["feeds"]
            },
            "workers": {
                name: _mean([p["workers"][name] for p in recent if name in p["workers"]])
                for name in newest["workers"]
            },
        }


def _feed_point(now: Any, before: Any, span: float) -> dict[str, Any]:
    # A feed that was taken back to a snapshot counts anew.
    rates: dict[str, Any] = {
        name: max(0.0, total(now) - total(before)) / span for name, total in _TOTALS.items()
    }
    known = {trainer["trainer"]: trainer for trainer in before["trainers"]}
    trainers = {}
    blocked = total = 0.0
    for trainer in now["trainers"]:
        earlier = known.get(trainer["trainer"])
        if earlier is None:
            continue
        waited = max(0.0, trainer["blocked_s"] - earlier["blocked_s"])
        busy = max(0.0, trainer["busy_s"] - earlier["busy_s"])
        blocked, total = blocked + waited, total + waited + busy
        trainers[str(trainer["trainer"])] = {
            "stall": waited / (waited + busy) if waited + busy else None,
            "rows": max(0, trainer["rows"] - earlier["rows"]) / span,
            "bytes": max(0, trainer["bytes"] - earlier["bytes"]) / span,
        }
    rates["stall"] = blocked / total if total else None
    rates["trainers"] = trainers
    rates["ready"] = now["standing"]["ready"] + now["standing"]["returned"]
    return rates


def _shares(now: Any, before: Any) -> dict[str, float]:
    """What part of its time a worker spent on what."""
    spent = {"work": now["work_s"] - before["work_s"]}
    for what, seconds in now["rests_s"].items():
        spent[what] = seconds - before["rests_s"].get(what, 0.0)
    spent = {what: max(0.0, seconds) for what, seconds in spent.items()}
    total = sum(spent.values())
    return {what: seconds / total if total else 0.0 for what, seconds in spent.items()}


def _mean(points: list[Any]) -> dict[str, Any]:
    """Of each number its mean over the points that have it."""
    mean: dict[str, Any] = {}
    for name in points[-1]:
        values = [point[name] for point in points if point.get(name) is not None]
        mean[name] = sum(values) / len(values) if values else None
    return mean


def _mean_feed(points: list[Any], newest: Any) -> dict[str, Any]:
    plain = [{n: v for n, v in point.items() if n != "trainers"} for point in points]
    trainers = {
        name: _mean([p["trainers"][name] for p in points if name in p["trainers"]])
        for name in newest["trainers"]
    }
    return {**_mean(plain), "trainers": trainers}
