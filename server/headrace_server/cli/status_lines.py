"""A status as lines for a terminal, which ``status`` prints.

speech  open  [bad] Trainers wait 41 % of their time: …
  examples ─ 812/s ─► stages ─ 812/s ─► sequences ─ 1,204/s ─► slab ─ 9.1 MiB/s ─► …
  trainer  where      waits               rows/s …
  1        host:4711  ████░░░░░░  41 %       402 …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ..process import statuses
from ..server.http_client import one_line, shown
from .progress import count, size, table

T = TypeVar("T")
#: The head of each column of a table, and the text of a cell.
_Columns = Mapping[str, Callable[[T], str]]

_CELLS = 10
_MOST_TRAINERS = 32
_MOST_WORKERS = 16
_LONGEST_TEXT = 400


def lines(status: statuses.ServerStatus) -> list[str]:
    """Return the lines of a status."""
    painted = [_head(status)]
    if status["why"]:
        painted += ["", shown(status["why"])]
    if status["disk"] is not None and status["disk"]["fault"]:
        painted += ["", shown(status["disk"]["fault"])]
    for name, feed in status["feeds"].items():
        painted += ["", *_feed(name, feed)]
    if status["workers"]:
        painted += ["", *_table(_WORKERS, status["workers"][:_MOST_WORKERS])]
    for event in status["events"][:3]:
        first = event["text"].split("\n")[0].removesuffix("; its last words were:")
        painted += ["", f"{event['kind']}: {one_line(first)[:_LONGEST_TEXT]}"]
    return painted


def _head(status: statuses.ServerStatus) -> str:
    parts = [status["state"], f"up {_span(status['uptime_s'])}", f"headrace {status['version']}"]
    if (disk := status["disk"]) is not None:
        parts.append(f"{size(disk['free_bytes'])} free for state")
    refused = sum(status["access"]["refused"].values())
    if refused:
        parts.append(f"{count(refused)} connections or messages refused")
    return "  ".join([*parts, *status["addresses"]])


def _feed(name: str, feed: statuses.FeedStatus) -> list[str]:
    verdict, rates, standing = feed["verdict"], feed["rates"], feed["standing"]
    text = " ".join(shown(verdict["text"]).split())[:_LONGEST_TEXT]
    painted = [f"{one_line(name)}  {feed['state']}  [{verdict['level']}] {text}"]
    painted.append(f"  {_flow(feed, rates)}")
    batches = f"batches: {count(feed['batches'])} done, {standing['ready']} ready, "
    batches += f"{standing['leased']} leased, {standing['saving']} saving"
    painted.append(f"  {batches}{_sent_away(feed['sent'])}{_troubles(feed)}")
    if feed["trainers"]:
        painted += _table(_TRAINERS, feed["trainers"][:_MOST_TRAINERS])
    more = len(feed["trainers"][_MOST_TRAINERS:]) + feed["trainers_more"]
    return [*painted, f"  and {more} more trainers"] if more else painted


def _flow(feed: statuses.FeedStatus, rates: statuses.Rates) -> str:
    pipeline = feed["pipeline"]
    steps = (
        f"{pipeline['source']} ─ {_rate(rates.get('read'))}",
        ", ".join(pipeline["stages"]) or "·",
        f"{pipeline['shape']} ─ {_rate(rates.get('made'))}",
        f"slab ─ {_or_dash(rates.get('bytes'), lambda nbytes: f'{size(nbytes)}/s')}",
        "leases",
        f"trainers ─ {_rate(rates.get('rows'))}",
        "done",
    )
    return " ─► ".join(steps)


def _or_dash(number: float | None, text: Callable[[float], str]) -> str:
    return "–" if number is None else text(number)


def _rate(rate: float | None) -> str:
    return _or_dash(rate, lambda n: f"{count(n) if n >= 10 else f'{n:.1f}'}/s")


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
    }
    return "".join(f"; {count(n)} {what}" for what, n in counts.items() if n)


def _trainer_name(trainer: statuses.TrainerStatus) -> str:
    rank = f" rank {trainer['rank']}" if trainer.get("rank", -1) >= 0 else ""
    return f"{trainer['trainer']} {one_line(trainer['name'])}".rstrip() + rank


def _most_awaited(worker: statuses.WorkerStatus) -> str:
    waits = {what: worker["shares"].get(what) or 0.0 for what in ("trainers", "states", "slab")}
    most = max(waits, key=lambda what: waits[what])
    return f"{most} {100 * waits[most]:.0f} %" if waits[most] >= 0.01 else ""


def _bar(part: float) -> str:
    """Return a part of some time as a bar."""
    full = round(_CELLS * max(0.0, min(1.0, part)))
    return f"{'█' * full}{'░' * (_CELLS - full)} {100 * part:3.0f} %"


_TRAINERS: _Columns[statuses.TrainerStatus] = {
    "<trainer": _trainer_name,
    "<where": lambda trainer: one_line(trainer["host"])[:40] or "unknown",
    "<waits": lambda trainer: _or_dash(trainer["rates"].get("stall"), _bar),
    "<for this server": lambda trainer: _or_dash(trainer["rates"].get("awaited"), _bar),
    "rows/s": lambda trainer: _or_dash(trainer["rates"].get("rows"), count),
    "holds": lambda trainer: str(trainer.get("leases", "–")),
    "sent": lambda trainer: count(trainer["batches"]),
    "done": lambda trainer: count(trainer["committed"]),
    "last heard": lambda trainer: _span(trainer["silent_s"]),
}
_WORKERS: _Columns[statuses.WorkerStatus] = {
    "<worker": lambda worker: str(worker["worker"]),
    "<works": lambda worker: _or_dash(worker["shares"].get("work"), _bar),
    "<waits mostly for": _most_awaited,
    "slab": lambda worker: size(worker["slab_bytes"]),
    "restarts": lambda worker: str(worker["restarts"]),
    "process": lambda worker: "gone" if worker["pid"] is None else str(worker["pid"]),
}


def _table(columns: _Columns[T], parts: Sequence[T]) -> list[str]:
    return table([*columns], [[cell(part) for cell in columns.values()] for part in parts])


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
