"""The rates between two looks at a server, and by these the bottleneck of a feed in one sentence.

failed, ended, draining, no trainer ─► nothing is to be judged
the disk ─► trainers wait: for workers, for room, for states ─► trainers set the pace

The stall ratio of a trainer is the part of its time in which it waited; that of a feed is the same
of all its trainers that were there at both looks.  A share is awaited for the part of it in which
they waited for a batch of that very server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..process.statuses import (
    FeedStatus,
    Rates,
    SeenServer,
    ServerStatus,
    VerdictStatus,
    WorkerStatus,
    added,
)

#: Trainers that wait for less than this part of their time are fed well …
_WELL = 0.05
#: … and beyond this they starve.
_STARVES = 0.3
_MOST = 0.5
#: The part that holds the others up, by what workers spend most of their time on …
_WHERE = {"work": "workers", "slab": "slab", "states": "trainers"}
#: … and why.
_WHY = {
    "slab": "the shared memory of the workers is full of batches that trainers still read.",
    "trainers": "the next segments need states that trainers hold. More sequences in flight "
    "(capacity) would help.",
}


#: Totals of a feed that become rates, and where they stand.
_TOTALS: dict[str, Callable[[FeedStatus], float]] = {
    "read": lambda feed: feed["read"],
    "made": lambda feed: feed["made"]["rows"],
    "bytes": lambda feed: feed["made"]["bytes"],
    "rows": lambda feed: feed["rows"],
    "batches": lambda feed: feed["batches"],
    "dropped": lambda feed: sum(feed["dropped"].values()),
}


def add_rates(before: SeenServer, now: SeenServer) -> None:
    """Add to a look the rates since an earlier one: of feeds, of trainers, of workers."""
    for feed in now["feeds"].values():
        feed["rates"] = {}
        for trainer in feed["trainers"]:
            trainer["rates"] = {}
    span = now["at"] - before["at"]
    if span <= 0:
        return
    for name, feed in now["feeds"].items():
        if name in before["feeds"]:
            feed["rates"] = _rates(before["feeds"][name], feed, span)
    earlier = {worker["worker"]: worker for worker in before["workers"]}
    for worker in now["workers"]:
        if worker["worker"] in earlier:
            worker["shares"] = _shares(earlier[worker["worker"]], worker)


def _rates(before: FeedStatus, now: FeedStatus, span: float) -> Rates:
    known = {trainer["trainer"]: trainer for trainer in before["trainers"]}
    blocked = busy = 0.0
    awaited: dict[str, float] = {}
    for trainer in now["trainers"]:
        earlier = known.get(trainer["trainer"])
        if earlier is not None:
            waited, worked = (_since(earlier, trainer, name) for name in ("blocked_s", "busy_s"))
            blocked, busy = blocked + waited, busy + worked
            ended = trainer["awaited_s"]
            waits = {share: _since(earlier["awaited_s"], ended, share) for share in ended}
            awaited = added([awaited, waits])
            trainer["rates"] = {
                "stall": _part(waited, worked),
                "awaited": _parts(waits, waited + worked),
                "rows": _since(earlier, trainer, "rows") / span,
                "bytes": _since(earlier, trainer, "bytes") / span,
            }
    then, totals = ({name: total(of) for name, total in _TOTALS.items()} for of in (before, now))
    rates: Any = {name: _since(then, totals, name) / span for name in totals}
    rates |= {"stall": _part(blocked, busy), "awaited": _parts(awaited, blocked + busy)}
    whole: Rates = rates
    return whole


def _since(before: Any, now: Any, name: str) -> float:
    """Return the growth of a count; after a feed was taken back, its counts restart."""
    return max(0.0, float(now[name] - before.get(name, 0.0)))


def _part(some: float, rest: float) -> float | None:
    return some / (some + rest) if some + rest else None


def _parts(spent: Mapping[str, float], total: float) -> dict[str, float]:
    return {what: seconds / total for what, seconds in spent.items()} if total else {}


def _shares(before: WorkerStatus, now: WorkerStatus) -> dict[str, float]:
    """Return which part of its time a worker spent on what."""
    spent = {what: _since(before["rests_s"], now["rests_s"], what) for what in now["rests_s"]}
    spent = {"work": _since(before, now, "work_s"), **spent}
    return _parts(spent, sum(spent.values())) or dict.fromkeys(spent, 0.0)


def verdict(
    feed: FeedStatus,
    rates: Rates,
    shares: Sequence[Mapping[str, float]],
    draining: bool = False,
    of: str = "",
    disk: str = "",
) -> VerdictStatus:
    """Judge a feed.

    ``level`` is good, slow, bad or idle; ``where`` is the part that holds the others up: workers,
    slab, trainers, store, leases, or "" where nothing does.  ``rates`` are the feed's, ``shares``
    what its workers spend their time on; ``of`` says what trainers wait for, after how long;
    ``disk`` is the fault of the state directory.
    """
    settled = _settled(feed, draining, disk)
    if settled is not None:
        return settled
    stall = rates.get("stall")
    if stall is None:
        return _judged("idle", "", "Not long enough under way to judge.")
    part = f"{100 * stall:.0f} %"
    if stall < _WELL:
        text = f"Trainers are fed: they wait {part} of their time, and set the pace."
        return _judged("good", "trainers", text)
    where, why = _why(feed, shares)
    level = "bad" if stall > _STARVES else "slow"
    return _judged(level, where, f"Trainers wait {part} of their time{of}: {why}")


def _judged(level: str, where: str, text: str) -> VerdictStatus:
    return {"level": level, "where": where, "text": text}


def _settled(feed: FeedStatus, draining: bool, disk: str) -> VerdictStatus | None:
    if feed["state"] == "failed" and feed["failure"]:
        return _judged("bad", "", f"The feed has failed: {feed['failure'][-1]}")
    faults = feed["store"]["faults"] if "store" in feed else []
    if faults:
        return _judged("bad", "store", f"Nothing can be committed: {faults[0]}")
    if disk:
        return _judged("bad", "store", f"The next start would fail: {disk}")
    if feed["state"] == "ended":
        return _judged("idle", "", "All batches are committed.")
    if feed["state"] == "opening":
        return _judged("idle", "", "The workers are opening the source.")
    if draining:
        return _judged("idle", "", "The server drains: nothing more is handed out.")
    if not feed["trainers"]:
        return _judged("idle", "", "No trainer is connected.")
    return None


def _slowest(seconds: Mapping[str, float]) -> str:
    """Return which of reading and the stages takes most of the workers' time, and what helps."""
    name = max(seconds, key=seconds.__getitem__, default="")
    total = sum(seconds.values())
    if not total:
        return "the workers are busy. More workers would help."
    part = f"{100 * seconds[name] / total:.0f} % of the time of reading and stages"
    cure = "a faster source" if name == "reading" else "a cheaper function"
    return f"the workers are busy, and {name} takes {part}. More workers or {cure} would help."


def _why(feed: FeedStatus, shares: Sequence[Mapping[str, float]]) -> tuple[str, str]:
    for what, where in _WHERE.items():
        if sum(share.get(what) or 0.0 for share in shares) > _MOST * len(shares):
            return where, _slowest(feed.get("seconds", {})) if where == "workers" else _WHY[where]
    return "leases", f"{feed['waiting']}."


def store_faults(status: ServerStatus) -> list[str]:
    """Return why nothing can be committed, or no file written to the state directory."""
    stores = [feed["store"] for feed in status["feeds"].values() if "store" in feed]
    disk = status["disk"]
    faults = [fault for store in stores for fault in store["faults"]]
    return [*faults, *([disk["fault"]] if disk is not None and disk["fault"] else [])]
