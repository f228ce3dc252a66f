"""``headrace preview``: the first batches of a pipeline, made in this process."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from itertools import islice, pairwise
from math import prod
from typing import Any, Final

import numpy as np

from headrace_proto.schema import OFFSETS, RESERVED

from ..files.manifest import resolve
from ..making.composition import segmented
from ..process.option import Option
from ..reading.chunk import BadRecords
from ..reading.source import IndexedSource
from .frame import with_options
from .local import LocalFeed, Sample
from .options import JSON
from .pipelines import PIPELINE, load_one
from .progress import count, reporting_cache, size, table

_FIRST: Final = 3
_MOST_CLASSES: Final = 12
_MOST_TEXT: Final = 40


@with_options(
    PIPELINE,
    Option("batches", "integer", default=3, short="n", least=1),
    Option("partitions", "integer", default=1, least=1),
    Option("partition", "integer", default=0, least=0, metavar="P"),
    Option("batch", "integer", absent="the first ones", least=0, metavar="N"),
    Option("label", "text", absent="the class, where the pipeline tells one", metavar="COLUMN"),
    JSON,
)
def preview(options: Namespace) -> None:
    """Make the first batches of a pipeline in this process, as a worker would, and show
    their shapes, types, lengths, padding, classes, first values, and the time that each
    took.  States of segments are saved as they were handed out.

    With --partition and --batch it makes one batch of a plain feed again, as batch.partition and
    batch.number name it to a trainer.  The number of partitions must be that of the server.

    batches: number of batches
    partitions: slices of the feed
    partition: the slice that is shown
    batch: the number of the only batch that is shown
    label: a column of one value per row: how often each value is there
    """
    name, pipeline = load_one(options.pipeline)
    declaration = pipeline.declaration()
    if options.partition >= options.partitions:
        raise ValueError(
            f"--partition {options.partition}: with --partitions {options.partitions} the last one "
            f"is {options.partitions - 1}; give --partitions as the server has it"
        )
    first = options.batch or 0
    if options.batch is not None and segmented(declaration):
        raise ValueError(
            f"--batch {first}: the batches of a feed of segments depend on when trainers save "
            "states, so none can be made again; .with_origin() names its rows (batch.origin)"
        )
    files = resolve(declaration.source.paths)
    bad = BadRecords(declaration.policy.on_bad_example == "skip")
    cache = reporting_cache(files)
    with LocalFeed(declaration, files, bad, cache, options.partitions, options.partition) as local:
        known = local.reader.length if isinstance(local.reader, IndexedSource) else None
        plain = {"feed": name, "source": declaration.source.kinds, "files": len(files)}
        plain |= {"examples": known, "indexed": known is not None}
        most = options.batches if options.batch is None else 1
        shown = [_batch(s, options.label) for s in islice(local.batches(first), most)]
        plain |= {"batches": shown, "dropped": local.run.dropped()}
    print(json.dumps(plain) if options.json else "\n".join(_text(plain)))


def _batch(sample: Sample, label: str | None) -> dict[str, Any]:
    """Return a batch as plain data."""
    plain: dict[str, Any] = {
        "number": sample.number,
        "rows": sample.rows,
        "bytes": sample.nbytes,
        "seconds": round(sample.seconds, 6),
        "padding": _waste(sample, list(sample.columns)),
    }
    if sample.bucket >= 0:
        plain["bucket"] = sample.bucket
    if "@key" in sample.columns:
        plain["keys"] = [_plain(key) for key in sample.columns["@key"][:_FIRST].tolist()]
    labels = _labels(sample, label)
    if labels is not None:
        plain["classes"] = {str(_plain(k)): n for k, n in sorted(Counter(labels).items())}
    plain["columns"] = [
        {
            "name": name,
            "dtype": sample.schema[name].dtype,
            "shape": shape,
            "padding": _waste(sample, [name]),
            "first": [_plain(value) for value in first],
        }
        for name in sample.columns
        if not name.startswith(OFFSETS)
        for shape, first in [_rows(sample, name)]
    ]
    if "@length" in sample.columns:
        lengths = sample.columns["@length"]
        plain["length"] = {
            "least": int(lengths.min()),
            "mean": round(float(lengths.mean()), 1),
            "most": int(lengths.max()),
        }
    return plain


def _rows(sample: Sample, name: str) -> tuple[list[int | None], list[Any]]:
    """Return the shape of a column and its first rows."""
    array, offsets = sample.columns[name], sample.columns.get(OFFSETS + name)
    if offsets is None:
        return list(array.shape), list(array[:_FIRST].tolist())
    ends = offsets[: _FIRST + 1].tolist()
    return [sample.rows, None, *array.shape[1:]], [array[a:b].tolist() for a, b in pairwise(ends)]


def _waste(sample: Sample, names: list[str]) -> float:
    """Return the part of the elements of some columns that is padding."""
    all_of = sum(prod(sample.columns[name].shape) for name in names)
    used = sum(sample.unpadded[name] for name in names)
    return round(1 - used / all_of, 4) if all_of else 0.0


def _labels(sample: Sample, label: str | None) -> list[Any] | None:
    name = label or f"{RESERVED}label"
    found = (sample.columns.get(column) for column in (name, f"context:{name}"))
    array = next((array for array in found if array is not None), None)
    if array is not None:
        if array.ndim != 1 or OFFSETS + name in sample.columns:
            shape = list(array.shape)
            raise ValueError(f"--label {label}: the column has {shape} values a batch")
        return list(array.tolist())
    if label is not None:
        names = [n for n in sample.columns if not n.startswith(RESERVED)]
        raise ValueError(f"--label {label}: there is no such column; there are {', '.join(names)}")
    return None


def _plain(value: Any) -> Any:
    """Return a value in a form of JSON, cut to fit a line."""
    if isinstance(value, bytes):
        return value[:_MOST_TEXT].decode(errors="backslashreplace")
    if isinstance(value, complex) or type(value).__module__ != "builtins":
        return str(value)
    if isinstance(value, list):
        return [_plain(one) for one in value[: 2 * _FIRST]]
    return value if not isinstance(value, float) or np.isfinite(value) else str(value)


def _text(plain: dict[str, Any]) -> list[str]:
    examples = "any number of" if plain["examples"] is None else count(plain["examples"])
    how = "read by number" if plain["indexed"] else "read forward"
    number = plain["files"]
    files = f"{count(number)} file{'s' * (number > 1)}, " if number else ""
    lines = [f"{plain['feed']}: {plain['source']}, {files}{examples} examples, {how}"]
    for batch in plain["batches"]:
        lines += ["", *_batch_text(batch)]
    if not plain["batches"]:
        lines.append("it makes no such batch")
    lines += [f"dropped so far: {count(n)} {reason}" for reason, n in plain["dropped"].items()]
    return lines


def _batch_text(batch: dict[str, Any]) -> list[str]:
    head = f"batch {batch['number']}: {batch['rows']} rows, {size(batch['bytes'])}, "
    head += f"{batch['seconds'] * 1000:.1f} ms"
    if "bucket" in batch:
        head += f", bucket {batch['bucket']}"
    if batch["padding"]:
        head += f", {batch['padding']:.0%} padding"
    lines = [head]
    if "length" in batch:
        length = batch["length"]
        lines.append(f"  lengths {length['least']} … {length['most']}, mean {length['mean']}")
    if "keys" in batch:
        lines.append(f"  first keys {', '.join(map(str, batch['keys']))}")
    if "classes" in batch:
        most = Counter(batch["classes"]).most_common(_MOST_CLASSES)
        more = len(batch["classes"]) - len(most)
        listed = ", ".join(f"{name}: {n}" for name, n in most)
        lines.append(f"  classes {listed}{f' and {more} more' if more else ''}")
    rows = []
    for column in batch["columns"]:
        if column["name"].startswith(RESERVED):
            continue
        first = ", ".join(map(_short, column["first"]))
        waste = f"{column['padding']:.0%}" if column["padding"] else ""
        shape = "x".join("?" if size is None else str(size) for size in column["shape"])
        short = first if len(first) <= _MOST_TEXT else f"{first[: _MOST_TEXT - 1]}…"
        rows.append((column["name"], column["dtype"], shape, waste, short))
    return lines + table(("<column", "<dtype", "<shape", "<padding", "<first"), rows)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"[{' '.join(map(_short, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
