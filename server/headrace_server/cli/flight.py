"""``headrace flight``: the trainer, the step and the end of each hand-out, and its rows.

``headrace skip``: the examples of recorded batches are left out from now on.
"""

from __future__ import annotations

import dataclasses
import json
import os
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..flight import skipping
from ..flight.choice import batch_named, handed_to, steps_named
from ..flight.feed_record import FeedRecord, beside_of, feed_of
from ..flight.hand_outs import HandOut
from ..flight.rows import BatchId, Row
from ..process.option import Option
from ..process.settings import ReplaySettings, options_of
from ..watch.http_client import one_line
from .frame import with_options
from .options import JSON

_REPLAY = {option.name: option for option in options_of(ReplaySettings)}
STATE_DIR, BESIDE, FEED, TRAINER, STEPS = (
    _REPLAY[name] for name in ("state_dir", "beside", "feed", "trainer", "steps")
)
KEY = Option("key", "text", "batches that hold a segment of the sequence of this key")
BATCH = Option(
    "batch",
    "text",
    "one batch, by partition and number; the last life's unless LIFE/P:N names another",
    metavar="P:N",
)
#: Options that choose hand-outs of a feed.
CHOICE = (STATE_DIR, FEED, KEY, TRAINER, STEPS, BATCH)
_LAST = 20


def key_of(options: Namespace) -> bytes | None:
    """Return the key of ``--key``, which may be any bytes."""
    return None if options.key is None else os.fsencode(options.key)


def chosen(history: FeedRecord, options: Namespace) -> list[HandOut]:
    """Return the hand-outs that ``--key``, ``--trainer`` or ``--batch`` names, else the last."""
    if options.trainer is None and options.steps is not None:
        raise ValueError("--steps needs --trainer: each trainer counts its own")
    if (key := key_of(options)) is not None:
        batches = {*history.with_key(key)}
        return [lease for lease in history.leases if lease.batch in batches]
    if options.trainer is not None:
        steps = steps_named("--steps", options.steps)
        return handed_to(options.trainer, steps, history.leases)
    if options.batch is not None:
        named = batch_named("--batch", options.batch, history.leases)
        return [lease for lease in history.leases if lease.batch == named]
    return history.leases[-(options.last or _LAST) :]


@with_options(
    *CHOICE,
    BESIDE,
    Option("last", "integer", absent="20, without --key, --trainer and --batch", least=1),
    Option("rows", "flag", default=False),
    JSON,
)
def flight(options: Namespace) -> None:
    """List which rows of a feed went to which trainer, at which step, and what became of
    them.  It reads the record in a state directory, beside a running server or after its
    end.

    last: the last hand-outs
    rows: list the rows too; --key and --batch always do
    """
    asked = [n for n in ("key", "trainer", "batch", "last") if getattr(options, n) is not None]
    if len(asked) > 1:
        raise ValueError(f"--{asked[0]} and --{asked[1]} are two questions: ask one")
    state = Path(options.state_dir)
    history = FeedRecord(state, feed_of(state, options.feed), beside_of(options.beside))
    key = key_of(options)
    found = chosen(history, options)
    if options.json:
        plain = [{**_plain(lease), **_plain_rows(history, lease, key)} for lease in found]
        print(json.dumps({"feed": history.feed, "flown": plain}))
        return
    for lease in found:
        print(_line(lease))
        if options.rows or options.batch is not None or key is not None:
            _print_rows(_rows(history, lease, key))
    if not found:
        print("nothing of that is recorded")


def _rows(history: FeedRecord, lease: HandOut, key: bytes | None) -> list[Row] | None:
    """Return the rows of a batch, or those of a key; None where they are recorded no more."""
    made = history.get(lease.batch)
    if made is None:
        return None
    return [row for row in made.listed() if key is None or row.key == key]


def _line(lease: HandOut) -> str:
    when = datetime.fromtimestamp(lease.sent, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    fates = " then ".join(event.fate for event in lease.events) or "out"
    return (
        f"batch {lease.batch}  {lease.rows} rows  {when}  "
        f"trainer {one_line(str(lease.trainer))}  step {lease.step}  {fates}"
    )


def _print_rows(rows: list[Row] | None) -> None:
    if rows is None:
        print("    its rows are recorded no more")
    for row in rows or ():
        which = ""
        if row.key is not None:
            which = f"key {one_line(row.key.decode(errors='backslashreplace'))}  "
        if row.segment >= 0:
            which += f"segment {row.segment} of {row.segments}  "
        print(f"    {which}example {row.example}  epoch {row.epoch}  {one_line(row.place)}")


def _plain(lease: HandOut) -> dict[str, Any]:
    trainer = lease.trainer
    hand_out = {
        "token": lease.token,
        "session": trainer.sessions[0][1],
        "host": trainer.host,
        "rank": None if trainer.rank < 0 else trainer.rank,
        "step": lease.step,
        "rows": lease.rows,
        "sent": lease.sent,
        "fate": lease.fate,
        "events": lease.events,
    }
    return {**lease.batch._asdict(), "lease": hand_out}


def _plain_rows(history: FeedRecord, lease: HandOut, key: bytes | None) -> dict[str, Any]:
    rows = _rows(history, lease, key)
    return {"recorded": rows is not None, "rows": [*map(_plain_row, rows or ())]}


def _plain_row(row: Row) -> dict[str, Any]:
    plain = dataclasses.asdict(row)
    if row.key is None:
        del plain["key"]
    else:
        plain["key"] = row.key.decode(errors="backslashreplace")
    if row.segment < 0:
        del plain["segment"], plain["segments"]
    return plain


@with_options(*CHOICE, BESIDE, Option("reason", "text", absent="must be given"), JSON)
def skip(options: Namespace) -> None:
    """Leave out the examples of batches that a state directory has recorded, from the next
    start of its server on.  The server must not run meanwhile.

    reason: the reason, which is stored in the list
    """
    asked = [name for name in ("key", "trainer", "batch") if getattr(options, name) is not None]
    if len(asked) != 1:
        raise ValueError("name what is to be left out by one of --batch, --trainer, --key")
    if options.trainer is not None and options.steps is None:
        raise ValueError("--trainer needs --steps A-B: it is not all that it ever got, is it?")
    if options.reason is None:
        raise ValueError("--reason TEXT must be given: the list keeps it")

    key = key_of(options)

    def batches(history: FeedRecord) -> list[BatchId]:
        if key is not None:
            return history.with_key(key)
        return [lease.batch for lease in chosen(history, options)]

    report = skipping.skip(
        Path(options.state_dir),
        options.feed,
        batches,
        reason=options.reason,
        key=key,
        beside=beside_of(options.beside),
    )
    print(json.dumps(report.to_plain()) if options.json else "\n".join(report.lines()))
