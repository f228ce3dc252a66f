"""``headrace inspect``: the place of one sequence, and the trainer that has it."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from typing import Any
from urllib.parse import quote

from ..watch.http_client import shown
from . import exits
from .options import JSON, Option
from .remote import SERVERS, askers
from .table import with_options


@with_options(
    Option("sequence", "text", "the key of a sequence", metavar="KEY", positional=True),
    SERVERS,
    Option("feed", "text", "its feed", absent="the only feed of segments", metavar="NAME"),
    JSON,
)
def inspect(options: Namespace) -> int:
    """Show where the sequence of a key is: its partition, segment and state, and which
    trainer has it since when.  The exit code is 1 where it is not in flight.
    """
    key = os.fsencode(options.sequence)
    path = f"/inspect?key={quote(key)}"
    if options.feed is not None:
        path += f"&feed={quote(options.feed)}"
    answers = [asker.get(path) for asker in askers(options)]
    answer = dict(answers[0])
    for part in ("found", "unheard"):
        answer[part] = [one for each in answers for one in each[part]]
    print(json.dumps(answer) if options.json else "\n".join(_lines(answer)))
    return exits.WELL if answer["found"] else exits.FAILED


def _lines(answer: Any) -> list[str]:
    found = [_example(answer, example) for example in answer["found"]]
    if answer["unheard"]:
        listed = ", ".join(map(str, answer["unheard"]))
        found.append(f"partitions {listed} have not answered: their workers are busy, or dead")
    elif not found:
        found.append(
            f"{shown(answer['key'])} is not on its way in feed {answer['feed']!r}: it has not been "
            "read yet, has ended, or is no key of this feed"
        )
    return found


def _example(answer: Any, example: Any) -> str:
    """One line; an example is there once for each epoch that it is on its way in."""
    head = (
        f"{shown(answer['key'])}: partition {example['partition']}, epoch {example['epoch'] + 1}, "
        f"segment {example['segment']} of {example['segments']}"
    )
    # As many of its states were saved as segments are done.
    state = f"state after {example['segment']} segments" if example["segment"] else "initial state"
    where = example["where"]
    if where == "leased":
        where = (
            f"leased to trainer {example['trainer']} for {example['since_s']:.1f} s "
            f"(batch {example['batch']})"
        )
    elif "batch" in example:
        where = f"{where} (batch {example['batch']})"
    return f"{head}, {state}, {where}"
