"""The status of all servers of a feed, made of the status of each.

    URL, status of share 0 ─► named() ─┐
    URL, status of share 1 ─► named() ─┴─► joined() ─► the slowest share ─► verdict
    URL, why it is away ───────────────────────────► a share that is away ──┘

A server numbers its workers and trainers.  Here the name of a worker has its share, too, and a
trainer has its id.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_proto.errors import ServerError

from ..process.statuses import (
    FeedStatus,
    ServerStatus,
    ShareStatus,
    VerdictStatus,
    joined,
)
from .verdict import verdict


def every(servers: Sequence[tuple[str, ServerStatus | str]]) -> ServerStatus:
    """Return the status of all servers.

    ``servers``: by share the URL of each, and its status or the reason why there is none.
    """
    there = {url: one for url, one in servers if not isinstance(one, str) and one["feeds"]}
    reasons = {
        url: one if isinstance(one, str) else f"{one['state']}: {one['why']}"
        for url, one in servers
        if url not in there
    }
    if not there:
        raise ServerError("no server answers: " + "; ".join(reasons.values()))
    whole = joined(ServerStatus, [_named(url, status) for url, status in there.items()])
    servers_of_feed = whole["share"][1]
    away: list[ShareStatus] = []
    for index, (url, _) in enumerate(servers):
        if url in reasons:
            away.append(_away(f"{index}/{servers_of_feed}", url, reasons[url]))
    whole["why"] = "; ".join(one["verdict"]["text"] for one in away)
    for feed in whole["feeds"].values():
        feed["shares"] = sorted(
            [*feed["shares"], *away], key=lambda one: int(one["share"].partition("/")[0])
        )
        feed["verdict"] = away[0]["verdict"] if away else _verdict(feed, whole)
    return whole


def _named(url: str, status: ServerStatus) -> ServerStatus:
    """Name what a server only numbers so that no other server has it."""
    index, servers = status["share"]
    share = f"share {index}/{servers}"
    return {
        **status,
        "workers": [{**one, "worker": f"{index}.{one['worker']}"} for one in status["workers"]],
        "events": [{**one, "text": f"{share}: {one['text']}"} for one in status["events"]],
        "feeds": {
            name: {
                **feed,
                "waiting": f"{share}: {feed['waiting']}",
                "shares": [{**one, "url": url} for one in feed["shares"]],
                "trainers": [{**one, "trainer": one["id"]} for one in feed["trainers"]],
                "partitions": [
                    {**one, "worker": f"{index}.{one['worker']}"} for one in feed["partitions"]
                ],
            }
            for name, feed in status["feeds"].items()
        },
    }


def _away(share: str, url: str, why: str) -> ShareStatus:
    text = f"Share {share} at {url} is away: {why}"
    return {
        "share": share,
        "url": url,
        "state": "away",
        "made": 0,
        "rows": 0,
        "ready": 0,
        "rates": {},
        "verdict": {"level": "bad", "where": "", "text": text},
    }


def _verdict(feed: FeedStatus, whole: ServerStatus) -> VerdictStatus:
    """Judge a feed by the share that trainers wait for longest."""
    awaited = feed["rates"].get("awaited") or {"": 0.0}
    slowest = max(awaited, key=lambda share: awaited[share])
    workers, of = whole["workers"], ""
    if len(feed["shares"]) > 1 and 2 * awaited[slowest] > sum(awaited.values()):
        url = next((one["url"] for one in feed["shares"] if one["share"] == slowest), "")
        of = f", most of it for share {slowest} at {url}"
        mine = f"{slowest.partition('/')[0]}."
        workers = [one for one in workers if str(one["worker"]).startswith(mine)]
    times = [one["shares"] for one in workers if one["shares"]]
    return verdict(feed, feed["rates"], times, whole["draining"], of)
