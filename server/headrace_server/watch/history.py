"""The last minutes of a server: its rates between two looks.

    status, status … ─► add() ─► [ points ] ─► points(since), rates()

A point is of the span between two looks.  The stall ratio of a trainer is the part of its time in
which it waited; that of a feed is the same of all its trainers that were there at both looks.  A
share is awaited for the part of it in which they waited for a batch of that very server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..process.counts import added
from ..process.statuses import FeedStatus, ServerStatus, WorkerStatus

#: Time between two looks.
EVERY_S = 2.0
_MOST = 180
#: Rates are of the last seconds.
_RECENT_S = 10.0

#: Totals of a feed that become rates, and where they stand.
_TOTALS: dict[str, Callable[[FeedStatus], float]] = {
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
        self._last: ServerStatus | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=_MOST)

    def add(self, status: ServerStatus) -> None:
        """Take another look, and make a point of the span since the last."""
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
        """Return the points after a moment, the oldest first."""
        return [point for point in list(self._points) if point["at"] > since]

    def rates(self) -> dict[str, Any]:
        """Return averages of the last seconds, as one point; empty while there are none."""
        points = list(self._points)
        if not points:
            return {"feeds": {}, "workers": {}}
        return _mean([p for p in points if p["at"] > points[-1]["at"] - _RECENT_S])


def _feed_point(now: FeedStatus, before: FeedStatus, span: float) -> dict[str, Any]:
    known = {trainer["trainer"]: trainer for trainer in before["trainers"]}
    blocked = busy = 0.0
    awaited: dict[str, float] = {}
    trainers = {}
    for trainer in now["trainers"]:
        earlier = known.get(trainer["trainer"])
        if earlier is not None:
            waited, worked = (_since(earlier, trainer, name) for name in ("blocked_s", "busy_s"))
            blocked, busy = blocked + waited, busy + worked
            ended = trainer["awaited_s"]
            waits = {share: _since(earlier["awaited_s"], ended, share) for share in ended}
            awaited = added([awaited, waits])
            trainers[str(trainer["trainer"])] = {
                "stall": _part(waited, worked),
                "awaited": _parts(waits, waited + worked),
                "rows": _since(earlier, trainer, "rows") / span,
                "bytes": _since(earlier, trainer, "bytes") / span,
            }
    then, totals = ({name: total(of) for name, total in _TOTALS.items()} for of in (before, now))
    return {
        **{name: _since(then, totals, name) / span for name in totals},
        "stall": _part(blocked, busy),
        "awaited": _parts(awaited, blocked + busy),
        "trainers": trainers,
        "ready": now["standing"]["ready"] + now["standing"]["returned"],
    }


def _since(before: Any, now: Any, name: str) -> float:
    """Return the growth of a count; after a feed was taken back, its counts restart."""
    return max(0.0, float(now[name] - before.get(name, 0.0)))


def _part(some: float, rest: float) -> float | None:
    return some / (some + rest) if some + rest else None


def _parts(spent: Mapping[str, float], total: float) -> dict[str, float]:
    return {what: seconds / total for what, seconds in spent.items()} if total else {}


def _shares(now: WorkerStatus, before: WorkerStatus) -> dict[str, float]:
    """Return which part of its time a worker spent on what."""
    spent = {what: _since(before["rests_s"], now["rests_s"], what) for what in now["rests_s"]}
    spent = {"work": _since(before, now, "work_s"), **spent}
    total = sum(spent.values())
    return _parts(spent, total) if total else dict.fromkeys(spent, 0.0)


def _mean(points: list[Any]) -> dict[str, Any]:
    """Return the mean of each number over the points that have it."""
    mean: dict[str, Any] = {}
    for name, newest in points[-1].items():
        values = [point[name] for point in points if point.get(name) is not None]
        if isinstance(newest, dict):
            mean[name] = _mean(values)
        else:
            mean[name] = sum(values) / len(values) if values else None
    return mean
