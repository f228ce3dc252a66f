"""``headrace skip``: the examples of recorded batches are left out from now on."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from ..flight import skipping
from ..flight.feed_record import beside_of
from .flight import BESIDE, CHOICE, chosen, key_of
from .options import JSON, Option
from .table import with_options


@with_options(
    *CHOICE,
    BESIDE,
    Option("reason", "text", "the reason, which is stored in the list", absent="must be given"),
    JSON,
)
def skip(options: Namespace) -> None:
    """Leave out the examples of batches that a state directory has recorded, from the next
    start of its server on.  The server must not run meanwhile.
    """
    asked = [name for name in ("key", "trainer", "batch") if getattr(options, name) is not None]
    if len(asked) != 1:
        raise ValueError("name what is to be left out by one of --batch, --trainer, --key")
    if options.trainer is not None and options.steps is None:
        raise ValueError("--trainer needs --steps A-B: it is not all that it ever got, is it?")
    if options.reason is None:
        raise ValueError("--reason TEXT must be given: the list keeps it")
    report = skipping.skip(
        Path(options.state_dir),
        options.feed,
        lambda history: chosen(history, options),
        options.reason,
        key_of(options),
        beside_of(options.beside),
    )
    print(json.dumps(report.to_plain()) if options.json else "\n".join(report.lines()))
