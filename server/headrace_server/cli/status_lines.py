"""A status as lines for a terminal, which ``status`` prints.

speech  open  [bad] Trainers wait 41 % of their time: …
  batches: 812 done, 3 ready, 2 leased, 0 saving
  trainer  where      waits  rows/s …
  1        host:4711   41 %     402 …

The page and ``--json`` have rates, stages and workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace_proto.errors import one_line, shown

from ..watch import statuses
from ..watch.statuses import added
from .progress import count, size, table

_MOST_TRAINERS = 32
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
    for event in status["events"][:3]:
        first = event["text"].split("\n")[0].removesuffix("; its last words were:")
        painted += ["", f"{event['kind']}: {one_line(first)[:_LONGEST_TEXT]}"]
    return painted


def _head(status: statuses.ServerStatus) -> str:
    parts = [status["state"], f"up {_span(status['uptime_s'])}", f"headrace {status['version']}"]
    if (disk := status["disk"]) is not None:
        parts.append(f"{size(disk['free_bytes'])} free for state")
    far = added(worker.get("remote_bytes", {}) for worker in status["workers"])
    if any(far.values()):
        parts.append(f"remote files: {size(far['store'])} fetched, {size(far['disk'])} from a disk")
    refused = sum(status["access"]["refused"].values())
    if refused:
        parts.append(f"{count(refused)} connections or messages refused")
    return "  ".join([*parts, *status["addresses"]])


def _feed(name: str, feed: statuses.FeedStatus) -> list[str]:
    verdict, standing = feed["verdict"], feed["standing"]
    text = " ".join(shown(verdict["text"]).split())[:_LONGEST_TEXT]
    painted = [f"{one_line(name)}  {feed['state']}  [{verdict['level']}] {text}"]
    batches = f"batches: {count(feed['batches'])} done, {standing['ready']} ready, "
    batches += f"{standing['leased']} leased, {standing['saving']} saving"
    painted.append(f"  {batches}{_sent_away(feed['sent'])}{_troubles(feed)}")
    if feed["trainers"]:
        rows = [[cell(one) for cell in _COLUMNS.values()] for one in feed["trainers"]]
        painted += table([*_COLUMNS], rows[:_MOST_TRAINERS])
    more = len(feed["trainers"][_MOST_TRAINERS:]) + feed["trainers_more"]
    return [*painted, f"  and {more} more trainers"] if more else painted


def _or_dash(number: float | None, text: Callable[[float], str]) -> str:
    return "–" if number is None else text(number)


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


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


#: The head of each column of the table of trainers, and the text of a cell.
_COLUMNS: Mapping[str, Callable[[statuses.TrainerStatus], str]] = {
    "<trainer": _trainer_name,
    "<where": lambda trainer: one_line(trainer["host"])[:40] or "unknown",
    "waits": lambda trainer: _or_dash(trainer["rates"].get("stall"), _percent),
    "for this server": lambda trainer: _or_dash(trainer["rates"].get("awaited"), _percent),
    "rows/s": lambda trainer: _or_dash(trainer["rates"].get("rows"), count),
    "holds": lambda trainer: str(trainer.get("leases", "–")),
    "sent": lambda trainer: count(trainer["batches"]),
    "done": lambda trainer: count(trainer["committed"]),
    "last heard": lambda trainer: _span(trainer["silent_s"]),
}


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
