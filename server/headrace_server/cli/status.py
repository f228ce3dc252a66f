"""``headrace status``: a server at one moment, or all servers of a feed."""

from __future__ import annotations

import json
from argparse import Namespace

from ..process.statuses import ServerStatus
from . import exits
from .options import JSON
from .painting import lines
from .remote import ALL, SERVERS, askers, status_of_all
from .table import with_options


@with_options(SERVERS, ALL, JSON)
def status(options: Namespace) -> int:
    """Show the state of a server and its bottleneck.  The exit code is 1 where the server
    or one of its feeds has failed.  Several servers are shown one after the other, in JSON
    by their URL.  With --all they are shown as one, and by share; the exit code is 1 while
    one is away.
    """
    servers = askers(options)
    every = (
        {"": status_of_all(servers)} if options.all else {one.url: one.status() for one in servers}
    )
    several = len(every) > 1
    if options.json:
        print(json.dumps(every if several else next(iter(every.values()))))
    else:
        for url, status in every.items():
            painted = "\n".join(lines(status))
            print(f"{url}\n{painted}\n" if several else painted)
    return exits.FAILED if any(map(_has_failed, every.values())) else exits.WELL


def _has_failed(status: ServerStatus) -> bool:
    """Whether a server, one of its feeds or one of all servers has failed."""
    feeds = status["feeds"].values()
    states = {one["state"] for feed in feeds for one in (feed, *feed["shares"])}
    return status["state"] == "failed" or bool({"failed", "away"} & states)
