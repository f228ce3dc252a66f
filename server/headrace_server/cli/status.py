"""``headrace status``: a server at one moment, or all servers of a feed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from . import exits
from .options import JSON
from .painting import lines
from .remote import SERVERS, askers
from .table import Command

__all__ = ["COMMAND"]


def _status(options: Namespace) -> int:
    servers = {asker.url: asker.status() for asker in askers(options)}
    several = len(servers) > 1
    if options.json:
        print(json.dumps(servers if several else next(iter(servers.values()))))
    else:
        for url, status in servers.items():
            painted = "\n".join(lines(status))
            print(f"{url}\n{painted}\n" if several else painted)
    return exits.FAILED if any(map(_has_failed, servers.values())) else exits.WELL


def _has_failed(status: Mapping[str, Any]) -> bool:
    feeds = status["feeds"].values()
    return status["state"] == "failed" or any(feed["state"] == "failed" for feed in feeds)


COMMAND = Command(
    "Show what a server does and what holds it up.  The exit code is 1 where the server or one of "
    "its feeds has failed.  Several servers are shown one after the other, in JSON by their URL.",
    (SERVERS, JSON),
    _status,
)
