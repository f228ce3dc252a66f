"""``headrace status``: a server at one moment."""

from __future__ import annotations

import json
from argparse import Namespace

from . import exits
from .options import JSON
from .painting import lines
from .remote import HTTP, Asker
from .table import Command

__all__ = ["COMMAND"]


def _status(options: Namespace) -> int:
    status = Asker(options).status()
    print(json.dumps(status) if options.json else "\n".join(lines(status)))
    failed = any(feed["state"] == "failed" for feed in status["feeds"].values())
    return exits.FAILED if failed or status["state"] == "failed" else exits.WELL


COMMAND = Command(
    "Show what a server does and what holds it up.  The exit code is 1 where the server or one of "
    "its feeds has failed.",
    (HTTP, JSON),
    _status,
)
