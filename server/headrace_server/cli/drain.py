"""``headrace drain``: have a server hand out nothing more, and wait for what is out."""

from __future__ import annotations

import time
from argparse import Namespace

from headrace_proto.clock import Deadline
from headrace_proto.errors import ConnectionLost

from . import exits
from .asking import HTTP, TIMEOUT_S, TOKEN, Asker
from .options import Option
from .table import Command

__all__ = ["COMMAND"]

_LOOK_S = 0.3
_OPTIONS = (
    HTTP,
    TOKEN,
    Option("wait", "seconds", "how long to wait for the commits of what is out", default=60.0),
)


def _drain(options: Namespace) -> int:
    asker = Asker(options)
    asker.post("/drain")
    deadline = Deadline(options.wait, gap_s=TIMEOUT_S + _LOOK_S)
    while True:
        try:
            left = _left(asker)
        except ConnectionLost:
            print("drained: the server has ended")
            return exits.WELL
        if not left:
            print("drained: nothing is out")
            return exits.WELL
        if not deadline.left_s:
            print(f"draining: {left} batches are still out")
            return exits.FAILED
        time.sleep(_LOOK_S)


def _left(asker: Asker) -> int:
    """Batches that trainers have, or whose states are being kept."""
    feeds = asker.status()["feeds"].values()
    return sum(feed["standing"]["leased"] + feed["standing"]["saving"] for feed in feeds)


COMMAND = Command(
    "Have a server hand out nothing more, and wait until trainers have committed what they hold.  "
    "headrace serve ends then.  The exit code is 1 where something is still out after the wait.",
    _OPTIONS,
    _drain,
)
