"""``headrace end``: close the input of a feed for good."""

from __future__ import annotations

from argparse import Namespace
from urllib.parse import quote

from . import exits
from .asking import HTTP, TOKEN, Asker
from .options import Option
from .table import Command

__all__ = ["COMMAND"]

_OPTIONS = (
    Option("feed", "text", "the feed", metavar="FEED", positional=True),
    HTTP,
    TOKEN,
    Option("cancel", "flag", "drop rows that were read and are in no batch yet", default=False),
)


def _end(options: Namespace) -> int:
    cancel = "&cancel=1" if options.cancel else ""
    Asker(options).post(f"/end?feed={quote(options.feed, safe='')}{cancel}")
    print(f"feed {options.feed!r} reads no more: loops end when what was read is committed")
    return exits.WELL


COMMAND = Command(
    "Closes the input of a feed for good: rows that were read are still handed out, and then the "
    "loops of all trainers end normally.  A restart of the server does not open it again, headrace "
    "restart does.",
    _OPTIONS,
    _end,
)
