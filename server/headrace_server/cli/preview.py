"""``headrace preview``: the first batches of a pipeline, made in this process."""

from __future__ import annotations

from argparse import Namespace
from itertools import islice, pairwise
from typing import Final

from headrace_proto.schema import OFFSETS

from ..files.manifest import resolve
from ..process.option import Option
from ..reading.chunk import BadRecords
from ..reading.source import IndexedSource
from .frame import with_options
from .local import LocalFeed, Sample
from .pipelines import PIPELINE, load_one
from .progress import count, counted, reporting_cache, size, table

#: Rows of which the values are shown, and the length of their text.
_FIRST: Final = 3
_MOST_TEXT: Final = 40


@with_options(
    PIPELINE,
    Option("batches", "integer", default=3, short="n", least=1),
    Option("partitions", "integer", default=1, least=1),
    Option("partition", "integer", default=0, least=0, metavar="P"),
    Option("batch", "integer", absent="the first ones", least=0, metavar="N"),
    Option("world_size", "integer", default=0, least=0, metavar="W"),
)
def preview(options: Namespace) -> None:
    """Make the first batches of a pipeline in this process, as a worker would, and show
    the time that each took, and shapes, types and first values of its columns and facts.  States of
    segments are saved as they were handed out.

    With --partition and --batch it makes one batch again, as batch.partition and batch.number name
    it to a trainer: of a plain feed, of the lanes of a single trainer, or of segments of ranks.  Of
    segments it shows no states then.  The number of partitions must be that of the server.

    batches: number of batches
    partitions: slices of the feed
    partition: the slice that is shown
    batch: the number of the only batch that is shown
    world_size: number of ranks that train segments
    """
    name, pipeline = load_one(options.pipeline)
    declaration = pipeline.declaration()
    if options.partition >= options.partitions:
        raise ValueError(
            f"--partition {options.partition}: with --partitions {options.partitions} the last one "
            f"is {options.partitions - 1}; give --partitions as the server has it"
        )
    first = options.batch or 0
    world, shape = options.world_size, declaration.shape
    if world and not declaration.segmented:
        raise ValueError(f"--world-size {world}: ranks do not change these batches: leave it out")
    lanes = declaration.segmented and shape.options["order"] == "lanes"
    if options.batch is not None and declaration.segmented and not (lanes or world):
        raise ValueError(
            f"--batch {first}: without ranks, segments in their order of arrival depend on when "
            "trainers save states, so no batch can be made again: give --world-size, as the ranks "
            "have it; .with_origin() names the rows of others (batch.origin)"
        )
    files = resolve(declaration.source.paths)
    bad = BadRecords(declaration.policy.on_bad_example == "skip")
    cache = reporting_cache(files)
    with LocalFeed(declaration, files, bad, cache, options.partitions, options.partition) as local:
        reader = local.reader
        among = f" in {counted(len(files), 'file')}" if files else ""
        known = "any number of examples"
        if isinstance(reader, IndexedSource):
            known = counted(reader.length, "example")
        print(f"{name}: {declaration.source.kinds}, {known}{among}")
        made = 0
        most = options.batches if options.batch is None else 1
        for sample in islice(local.batches(first, world), most):
            print("", *_lines(sample), sep="\n")
            made += 1
        if not made:
            print("it makes no such batch")
        for reason, n in local.run.dropped().items():
            print(f"dropped so far: {count(n)} {reason}")


def _lines(sample: Sample) -> list[str]:
    """Return a batch as lines of text."""
    made = sample.made
    head = f"batch {made.number}: {counted(made.rows, 'row')}, {size(made.nbytes)}, "
    head += f"{sample.seconds * 1000:.1f} ms"
    if made.bucket >= 0:  # it is -1 where the shape has none
        head += f", bucket {made.bucket}"
    rows = []
    for name in sample.columns:
        if not name.startswith(OFFSETS):
            shape, first = _first(sample, name)
            text = ", ".join(_short(value) for value in first)
            short = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
            dimensions = "x".join("?" if n is None else str(n) for n in shape)
            rows.append((name, sample.schema[name].dtype, dimensions, short))
    return [head, *table(("<column", "<dtype", "<shape", "<first"), rows)]


def _first(sample: Sample, name: str) -> tuple[list[int | None], list[object]]:
    """Return the shape of a column and its first rows."""
    array, offsets = sample.columns[name], sample.columns.get(OFFSETS + name)
    if offsets is None:
        return list(array.shape), list(array[:_FIRST].tolist())
    ends = offsets[: _FIRST + 1].tolist()
    return [sample.made.rows, None, *array.shape[1:]], [
        array[a:b].tolist() for a, b in pairwise(ends)
    ]


def _short(value: object) -> str:
    """Return a value as a text, cut to fit a line."""
    if isinstance(value, list):
        return f"[{' '.join(map(_short, value[: 2 * _FIRST]))}]"
    if isinstance(value, bytes):
        return value[:_MOST_TEXT].decode(errors="backslashreplace")
    return f"{value:g}" if isinstance(value, float) else str(value)
