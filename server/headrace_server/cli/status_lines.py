"""A status as lines for a terminal, which ``status`` and ``top`` print.

speech  ● Trainers wait 41 % of their time: …
  examples ─ 812/s ─► stages ─ 812/s ─► sequences ─ 1,204/s ─► slab ─ 9.1 MiB/s ─► …
  trainer  where      waits               rows/s …
  1        host:4711  ████░░░░░░  41 %       402 …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..process import statuses
from ..watch.http_client import shown
from .progress import count, size, table

_COLORS = {"good": "32", "slow": "33", "bad": "31", "idle": "90"}
_CELLS = 10
_MOST_TRAINERS = 32
_MOST_WORKERS = 16
_LONGEST_TEXT = 400


def lines(status: statuses.ServerStatus, color: bool = False) -> list[str]:
    """Return the lines of a status."""
    painted = [_head(status)]
    if status["why"]:
        painted += ["", shown(status["why"])]
    for name, feed in status["feeds"].items():
        painted += ["", *_feed(name, feed, color)]
    if status["workers"]:
        painted += ["", *_workers(status["workers"][:_MOST_WORKERS])]
    for event in status["events"][:3]:
        first = event["text"].split("\n")[0]
        painted += ["", f"{event['kind']}: {shown(first)[:_LONGEST_TEXT]}"]
    return painted


def _head(status: statuses.ServerStatus) -> str:
    parts = [status["state"], f"up {_span(status['uptime_s'])}", f"headrace {status['version']}"]
    refused = sum(status["access"]["refused"].values())
    if refused:
        parts.append(f"{count(refused)} refused at the door")
    return "  ".join([*parts, *status["addresses"]])


def _feed(name: str, feed: statuses.FeedStatus, color: bool) -> list[str]:
    verdict, rates, standing = feed["verdict"], feed["rates"], feed["standing"]
    dot = f"\x1b[{_COLORS[verdict['level']]}m●\x1b[0m" if color else f"[{verdict['level']}]"
    text = " ".join(shown(verdict["text"]).split())[:_LONGEST_TEXT]
    bold = f"\x1b[1m{shown(name)}\x1b[0m" if color else shown(name)
    painted = [f"{bold}  {feed['state']}  {dot} {text}", f"  {_flow(feed, rates)}"]
    batches = f"batches: {count(feed['batches'])} done, {standing['ready'] + standing['returned']} "
    batches += f"ready, {standing['leased']} leased, {standing['saving']} saving"
    if len(feed["shares"]) > 1:
        painted += table(_SHARE_HEADS, [_share(share) for share in feed["shares"]])
    painted.append(f"  {batches}{_sent_away(feed['sent'])}{_troubles(feed)}")
    if feed["trainers"]:
        painted += table(_TRAINER_HEADS, [_trainer(t) for t in feed["trainers"][:_MOST_TRAINERS]])
    more = len(feed["trainers"][_MOST_TRAINERS:]) + feed["trainers_more"]
    return [*painted, f"  and {more} more trainers"] if more else painted


def _flow(feed: statuses.FeedStatus, rates: statuses.Rates) -> str:
    pipeline = feed["pipeline"]
    nbytes = rates.get("bytes")
    made = "–" if nbytes is None else f"{size(nbytes)}/s"
    stages = ", ".join(pipeline["stages"]) or "·"
    steps = (
        f"{pipeline['source']} ─ {_rate(rates.get('read'))} ",
        stages,
        f"{pipeline['shape']} ─ {_rate(rates.get('made'))} ",
        f"slab ─ {made} ",
        "leases",
        f"trainers ─ {_rate(rates.get('rows'))} ",
        "done",
    )
    return "─► ".join(f"{step.rstrip()} " for step in steps).rstrip()


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{count(rate) if rate >= 10 else f'{rate:.1f}'}/s"


def _sent_away(sent: Mapping[str, Mapping[str, int]]) -> str:
    """Return how much went over the network, where anything did."""
    away, here = sent["batches"]["wire"], sent["batches"]["shm"]
    return f"; {count(away)} of {count(away + here)} sent by the network" if away else ""


def _troubles(feed: statuses.FeedStatus) -> str:
    """Return the counts of faults so far, where there are any."""
    counts = {
        "sent again": feed["redelivered"],
        "leases expired": feed["expired"],
        "stale": feed["stale"],
        "saves refused": sum(feed["refused"].values()),
        "rows dropped": sum(feed["dropped"].values()),
        "rows left out": feed["quarantined"],
    }
    return "".join(f"; {count(n)} {what}" for what, n in counts.items() if n)


_SHARE_HEADS = ("<share", "<where", "<state", "<is awaited", "made", "done", "ready")


def _share(share: statuses.ShareStatus) -> list[str]:
    rates = share["rates"]
    awaited = rates.get("awaited", {}).get(share["share"])
    return [
        share["share"],
        share["url"],
        share["state"],
        "–" if awaited is None else f"{_bar(awaited)} {100 * awaited:3.0f} %",
        _rate(rates.get("made")),
        _rate(rates.get("rows")),
        count(share["ready"]),
    ]


_TRAINER_HEADS = ("<trainer", "<where", "<waits", "rows/s", "holds", "sent", "done", "last heard")


def _trainer(trainer: statuses.TrainerStatus) -> list[str]:
    rates = trainer["rates"]
    stall, rows = rates.get("stall"), rates.get("rows")
    waits = "–" if stall is None else f"{_bar(stall)} {100 * stall:3.0f} %"
    awaited = rates.get("awaited", {})
    if len(awaited) > 1 and any(awaited.values()):
        share = max(awaited, key=lambda share: awaited[share])
        waits += f", {100 * awaited[share]:.0f} % for {share}"
    rank = f" rank {trainer['rank']}" if trainer.get("rank", -1) >= 0 else ""
    return [
        f"{trainer['trainer']} {shown(trainer['name'])}".rstrip() + rank,
        shown(trainer["host"])[:40] or "unknown",
        waits,
        "–" if rows is None else count(rows),
        str(trainer.get("leases", "–")),
        count(trainer["batches"]),
        count(trainer["committed"]),
        _span(trainer["silent_s"]),
    ]


def _workers(workers: Sequence[statuses.WorkerStatus]) -> list[str]:
    rows = []
    for worker in workers:
        shares = worker["shares"]
        work = shares.get("work")
        waits = {what: shares.get(what) or 0.0 for what in ("trainers", "states", "slab")}
        most = max(waits, key=lambda what: waits[what])
        rows.append(
            [
                str(worker["worker"]),
                "–" if work is None else f"{_bar(work)} {100 * work:3.0f} %",
                f"{most} {100 * waits[most]:.0f} %" if waits[most] >= 0.01 else "",
                size(worker["slab_bytes"]),
                str(worker["restarts"]),
                "gone" if worker["pid"] is None else str(worker["pid"]),
            ]
        )
    return table(("<worker", "<works", "<waits mostly for", "slab", "restarts", "process"), rows)


def _bar(share: float) -> str:
    full = round(_CELLS * max(0.0, min(1.0, share)))
    return "█" * full + "░" * (_CELLS - full)


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
