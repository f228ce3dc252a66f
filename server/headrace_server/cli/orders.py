"""``headrace drain``, ``end``, ``restart`` and ``snapshot``: have a running server do something."""

from __future__ import annotations

import json
import time
from argparse import Namespace

from headrace_proto.clock import Deadline
from headrace_proto.errors import ConnectionLost

from ..watch.http_client import RESTART_S, TIMEOUT_S, HttpClient, snapshot_of_all
from . import exits
from .options import Option
from .remote import SERVERS, TOKEN, askers
from .table import with_options

_LOOK_S = 0.3
_FEED = Option("feed", "text", "the feed", metavar="FEED", positional=True)
_WAIT = Option("wait", "seconds", "how long that may take", default=RESTART_S)


@with_options(SERVERS, TOKEN, Option("wait", "seconds", "how long to wait for commits", 60.0))
def drain(options: Namespace) -> int:
    """Make a server hand out nothing more, and wait until trainers have committed their batches.
    Then headrace serve ends.  The exit code is 1 if some are uncommitted after the wait.
    """
    servers = askers(options)
    for asker in servers:
        asker.post("/drain")
    deadline = Deadline(options.wait, gap_s=TIMEOUT_S + _LOOK_S)
    while True:
        out = [_out(asker) for asker in servers]
        left = sum(count for count in out if count is not None)
        if not left:
            ended = "the server has ended" if len(out) == 1 else "the servers have ended"
            print(f"drained: {'nothing is out' if out.count(None) < len(out) else ended}")
            return exits.WELL
        if not deadline.left_s:
            print(f"draining: {left} batches are still out")
            return exits.FAILED
        time.sleep(_LOOK_S)


def _out(asker: HttpClient) -> int | None:
    """Count batches in hand, or with states that are being stored; None: the server has ended."""
    try:
        feeds = asker.status()["feeds"].values()
    except ConnectionLost:
        return None
    return sum(int(feed["standing"]["leased"] + feed["standing"]["saving"]) for feed in feeds)


@with_options(
    _FEED,
    SERVERS,
    TOKEN,
    Option("cancel", "flag", "drop rows that were read and are in no batch yet", False),
)
def end(options: Namespace) -> None:
    """Close the input of a feed for good: rows that were read are still handed out, and then
    the loops of all trainers end normally.  A restart of the server does not open it again,
    headrace restart does.
    """
    for asker in askers(options):
        asker.end(options.feed, options.cancel)
    print(f"feed {options.feed!r} reads no more: loops end when what was read is committed")


@with_options(
    _FEED,
    SERVERS,
    TOKEN,
    Option("force", "flag", "also while trainers use it: their work is undone", False),
    _WAIT,
)
def restart(options: Namespace) -> None:
    """Start a feed from its beginning, as if nothing was committed; with a state directory its
    state is replaced.  The exit code is 1, and nothing is done, while trainers use the feed,
    unless --force is given: they get FeedRewound then.
    """
    for asker in askers(options):
        asker.restart(options.feed, options.force, options.wait)
    print(f"feed {options.feed!r} starts from its beginning")


@with_options(
    SERVERS,
    TOKEN,
    Option("feed", "text", "optional where one feed is served", metavar="NAME"),
    _WAIT,
)
def snapshot(options: Namespace) -> None:
    """Make a server store all of a feed's state as it is now, with every commit that was
    acknowledged.  The token that is printed, one line of JSON, is for connect(resume=…) and for
    headrace serve --resume.
    """
    servers = [asker.snapshot for asker in askers(options)]
    print(json.dumps(snapshot_of_all(servers, options.feed, options.wait)))
