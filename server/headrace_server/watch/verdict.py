"""The rates between two looks at a server, and by these the bottleneck of a feed in one sentence.

failed, ended, draining, no trainer ─► nothing is to be judged
the disk ─► trainers wait: for workers, for room, for states ─► trainers set the pace

The stall ratio of a trainer is the part of its time in which it waited; that of a feed is the same
of all its trainers that were there at both looks.  The server is awaited for the part of it in
which they waited for a batch of this very server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from . import statuses
from .statuses import FeedStatus, Rates, SeenServer, added

#: Trainers that wait for less than this part of their time are fed well …
_WELL = 0.05
#: … and beyond this they starve.
_STARVES = 0.3
_MOST = 0.5
#: A part that is shown as 100 %.
_ALL = 0.995
#: By what workers spend most of their time on, beside work: the part that holds the others up, and
#: why.
_CAUSES = {
    "slab": ("slab", "the shared memory of the workers is full of batches that trainers read."),
    "states": ("trainers", "the next segments need states that trainers hold: raise capacity."),
}
_WHATS = ("work", "queued", *_CAUSES)


def add_rates(before: SeenServer, now: SeenServer) -> None:
    """Add to a look the rates since an earlier one: of feeds, of trainers, of workers."""
    span = now["at"] - before["at"]
    workers = {worker["worker"]: _spent(worker) for worker in before["workers"] if span > 0}
    for worker in now["workers"]:
        if worker["worker"] in workers:
            spent = _grown(workers[worker["worker"]], _spent(worker))
            queued = spent.pop("queued")  # part of the work
            total = sum(spent.values()) or 1.0
            worker["shares"] = _parts({**spent, "queued": queued}, total)
    for name, feed in now["feeds"].items():
        earlier = before["feeds"].get(name, feed)
        known = {one["trainer"]: _counts(one) for one in earlier["trainers"] if span > 0}
        waits: list[dict[str, float]] = []
        for trainer in feed["trainers"]:
            trainer["rates"] = {}
            if trainer["trainer"] in known:
                counts = _grown(known[trainer["trainer"]], _counts(trainer))
                waits.append({name: counts.pop(name) for name in _WAITS})
                trainer["rates"] = _rates(waits[-1], counts, span)
        grown = _grown(_totals(earlier), _totals(feed))
        feed["rates"] = _rates(added(waits), grown, span) if span > 0 else {}


_WAITS = ("blocked_s", "busy_s", "awaited_s")


def _counts(trainer: statuses.TrainerStatus) -> dict[str, float]:
    names = (*_WAITS, "rows", "bytes")
    return {name: trainer[name] for name in names}  # type: ignore[literal-required]


def _spent(worker: statuses.WorkerStatus) -> dict[str, float]:
    return {"work": worker["work_s"], "queued": worker["queued_s"], **worker["rests_s"]}


def _totals(feed: FeedStatus) -> dict[str, float]:
    counts = {"read": feed["read"], "rows": feed["rows"], "batches": feed["batches"]}
    made = {"made": feed["made"]["rows"], "bytes": feed["made"]["bytes"]}
    return {**counts, **made, "dropped": sum(feed["dropped"].values())}


def _grown(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of counts; those of a feed restart when it is taken back."""
    return {name: max(0.0, float(n - before.get(name, 0.0))) for name, n in now.items()}


def _rates(waits: Mapping[str, float], counts: Mapping[str, float], span: float) -> Rates:
    total = waits.get("blocked_s", 0.0) + waits.get("busy_s", 0.0)
    stall = waits["blocked_s"] / total if total else None
    awaited = waits["awaited_s"] / total if total else None
    return cast(Rates, {"stall": stall, "awaited": awaited, **_parts(counts, span)})


def _parts(counts: Mapping[str, float], total: float) -> dict[str, float]:
    return {name: n / total for name, n in counts.items()}


def verdict(feed: FeedStatus, status: SeenServer) -> statuses.VerdictStatus:
    """Judge a feed in the status of its server.

    ``level`` is good, slow, bad or idle; ``where`` is the part that holds the others up: workers,
    slab, trainers, store, leases, or "" where nothing does.
    """
    faults = feed["store"]["faults"] if "store" in feed else []
    failure = (feed["state"] == "failed" and feed["failure"]) or []
    disk = status["disk"]["fault"] if status["disk"] is not None else ""
    stall = feed["rates"].get("stall")
    for level, where, holds, text in (
        ("bad", "", failure, f"The feed has failed: {failure and failure[-1]}"),
        ("bad", "store", faults, f"Nothing can be committed: {faults and faults[0]}"),
        ("bad", "store", disk, f"The next start would fail: {disk}"),
        ("idle", "", feed["state"] == "ended", "All batches are committed."),
        ("idle", "", feed["state"] == "opening", "The workers are opening the source."),
        ("idle", "", status["draining"], "The server drains: nothing more is handed out."),
        ("idle", "", not feed["trainers"], "No trainer is connected."),
    ):
        if holds:
            return {"level": level, "where": where, "text": f"{text}{_of_producers(feed)}"}
    if stall is None:
        level, where, text = "idle", "", "Not long enough under way to judge."
    elif stall < _WELL:
        text = f"Trainers are fed: they wait {100 * stall:.0f} % of their time, and set the pace."
        level, where = "good", "trainers"
    else:
        where, why = _cause(feed, status)
        level = "bad" if stall > _STARVES else "slow"
        text = f"Trainers wait {100 * stall:.0f} % of their time: {why}"
    return {"level": level, "where": where, "text": f"{text}{_of_producers(feed)}"}


def _of_producers(feed: FeedStatus) -> str:
    """Return why producers of its logs wait, and what it has lost there."""
    log = feed.get("log", {})
    lost = f" Retention has taken {log['lost']} sequences from it." if log.get("lost") else ""
    if log.get("full"):
        return f" Producers wait: a feed is behind by max_backlog.{lost}"
    full = " Producers wait: the log has max_open open sequences." if log.get("wanting") else ""
    return f"{full}{lost}"


def _cause(feed: FeedStatus, status: SeenServer) -> tuple[str, str]:
    """Return the part of the server that holds trainers up, and why.

    Work in which a worker mostly waits for a core of the machine is the fault of other programs.
    """
    numbers = {part["worker"] for part in feed["partitions"]}
    times = [w["shares"] for w in status["workers"] if w["worker"] in numbers and w["shares"]]
    parts = {what: sum(shares.get(what, 0.0) for shares in times) for what in _WHATS}
    busy = "workers", _slowest(feed.get("seconds", {}))
    if parts["queued"] > _MOST * parts["work"]:
        part = f"{100 * parts['queued'] / parts['work']:.0f} % of the time in which they could work"
        text = f"this machine has no core free: the workers wait for one {part}."
        busy = "workers", f"{text} End other programs, or serve from another machine."
    for what, (where, why) in {"work": busy, **_CAUSES}.items():
        if parts[what] > _MOST * len(times):
            return where, why
    return "leases", f"{feed['waiting'] or 'nothing delays them now'}."


def _slowest(seconds: Mapping[str, float]) -> str:
    """Return which of reading and the stages takes most of the workers' time, and what helps."""
    name = max(seconds, key=seconds.__getitem__, default="")
    total = sum(seconds.values())
    if not total:
        return "the workers are busy. More workers would help."
    doing, cure, others = f"in {name}", "a cheaper function", "reading and other stages"
    if name == "reading":
        doing, cure, others = "reading", "a faster source", "the stages"
    part = seconds[name] / total
    rest = f" ({100 * part:.0f} %, and {others} the rest)" if part < _ALL else ""
    return f"the workers are busy {doing}{rest}. More workers or {cure} would help."


def store_faults(status: statuses.ServerStatus) -> list[str]:
    """Return why nothing can be committed, or no file written to the state directory."""
    stores = [feed["store"]["faults"] for feed in status["feeds"].values() if "store" in feed]
    disk = "" if status["disk"] is None else status["disk"]["fault"]
    return [fault for faults in (*stores, [disk]) for fault in faults if fault]
