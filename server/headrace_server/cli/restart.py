"""``headrace restart``: start a feed from its beginning."""

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
    Option("force", "flag", "also while trainers use it: their work is undone", default=False),
    Option("wait", "seconds", "how long that may take", default=300.0),
)


def _restart(options: Namespace) -> int:
    force = "&force=1" if options.force else ""
    Asker(options).post(f"/restart?feed={quote(options.feed, safe='')}{force}", options.wait)
    print(f"feed {options.feed!r} starts from its beginning")
    return exits.WELL


COMMAND = Command(
    "Starts a feed from its beginning, whatever was committed; with a state directory its state is "
    "replaced.  The exit code is 1, and nothing is done, while trainers use the feed, unless "
    "--force is given: they get FeedRewound then.",
    _OPTIONS,
    _restart,
)
