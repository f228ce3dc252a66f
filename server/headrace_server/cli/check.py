"""``headrace check``: would this pipeline work, and what would it cost?"""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace

from ..process.option import Option
from . import exits
from .frame import with_options
from .options import JSON
from .pipelines import PIPELINES, load
from .progress import count, size
from .survey import Survey, survey


@with_options(
    PIPELINES,
    Option("partitions", "integer", default=1, least=1),
    Option("full", "flag", default=False),
    JSON,
)
def check(options: Namespace) -> int:
    """Look at pipelines and their files without a server: whether they work, how they are
    read, and the memory that they need.  Ends with 1 where there is a problem.  Without
    --full large record files are judged by the smallest of them.

    partitions: slices of each feed
    full: go through every example, its checksums and all stages, not only the first batches
    """
    declared = {name: p.declaration() for name, p in load(options.pipelines).items()}
    found = [survey(name, d, options.partitions, options.full) for name, d in declared.items()]
    ok = all(one.ok for one in found)
    if options.json:
        feeds = [{**dataclasses.asdict(one), "ok": one.ok} for one in found]
        print(json.dumps({"ok": ok, "feeds": feeds}))
    else:
        print("\n\n".join("\n".join(_text(one)) for one in found))
    return exits.WELL if ok else exits.FAILED


def _text(found: Survey) -> list[str]:
    lines = [f"{found.feed}: {'ok' if found.ok else 'not ok'}"]
    lines += [f"  problem   {text}" for text in found.problems]
    lines += [f"  note      {text}" for text in found.notes]
    lines += [f"  {name:<10}{text}" for name, text in _facts(found) if text]
    return lines


def _facts(found: Survey) -> list[tuple[str, str]]:
    files = (
        f", {count(found.files)} file{'s' * (found.files > 1)}, {size(found.bytes)}"
        if found.files
        else ""
    )
    facts = [("source", f"{found.source}{files}")]
    if found.indexed is not None:
        facts += [("examples", _examples(found)), ("reading", _reading(found))]
        facts.append(("shuffle", found.shuffle))
    if found.batch_rows is not None and found.batch_bytes is not None:
        facts.append(("batches", _batches(found)))
        facts.append(("memory", _memory(found)))
    if found.scanned is not None:
        facts.append(("checked", f"all {count(found.scanned)} examples"))
        for reason, n in found.dropped.items():
            facts.append(("left out", f"{count(n)} {reason}"))
        facts += [("checksum", f"{name} {total}") for name, total in found.checksums.items()]
    return facts


def _examples(found: Survey) -> str:
    if found.examples is None:
        return "not known before all are read (--full counts them)"
    estimate = "about " if found.estimated else ""
    weight = "" if found.example_bytes is None else f", some {size(found.example_bytes)} each"
    return f"{estimate}{count(found.examples)}{weight}"


def _reading(found: Survey) -> str:
    most = count(found.partitions_possible or 0)
    if found.indexed:
        return f"by number, from anywhere; up to {most} partitions"
    return f"forward only, streams: {found.streams}; up to {most} partitions are worth having"


def _batches(found: Survey) -> str:
    assert found.batch_rows is not None and found.batch_bytes is not None
    text = f"{found.batch_rows:.3g} rows, {size(found.batch_bytes)}, by the first of them"
    if found.batches_per_epoch is not None:
        text += f"; {count(found.batches_per_epoch)} an epoch"
    return text


def _memory(found: Survey) -> str:
    parts = [f"slab of a worker {size(found.slab_bytes or 0)}"]
    if found.waiting_examples is None:
        parts.append("any number of examples may wait in a partition")
    else:
        weight = "" if found.waiting_bytes is None else f", {size(found.waiting_bytes)}"
        parts.append(f"up to {count(found.waiting_examples)} examples wait in a partition{weight}")
    if found.state_bytes:
        parts.append(f"their states {size(found.state_bytes)}")
    return "; ".join(parts)
