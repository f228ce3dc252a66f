"""``headrace snapshot``: have a running server take a snapshot, and print its token."""

from __future__ import annotations

import json
from argparse import Namespace
from urllib.parse import quote

from . import exits
from .asking import HTTP, TOKEN, Asker
from .options import Option
from .table import Command

__all__ = ["COMMAND"]

_OPTIONS = (
    HTTP,
    TOKEN,
    Option("feed", "text", "need not be given where one is served", metavar="NAME"),
    Option("wait", "seconds", "how long that may take", default=300.0),
)


def _snapshot(options: Namespace) -> int:
    of = "" if options.feed is None else f"?feed={quote(options.feed)}"
    print(json.dumps(Asker(options).post(f"/snapshot{of}", options.wait)))
    return exits.WELL


COMMAND = Command(
    "Has a server keep all of a feed's state as it is now: what trainers were told to be committed "
    "is in it.  The token that is printed, one line of JSON, is for connect(resume=…) and for "
    "headrace serve --resume.",
    _OPTIONS,
    _snapshot,
)
