"""``headrace check``: would this pipeline work, and what would it cost?

    files ─► reader ─► first batches ─────────────► how it is read, what a batch weighs
                └────► all examples (``full``) ───► what breaks a rule

A finding that would stop the feed is a problem; the survey notes it, and goes on as far as it can.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Final

from headrace_proto.errors import DataError

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile, resolve
from ..making.composition import shape_check
from ..making.segment_cutting import StateSource
from ..pipeline.declaration import Declaration, Policy, ReadingOrder
from ..process.config import RunConfig
from ..process.option import Option
from ..reading.chunk import BadRecords
from ..reading.columns import flattened
from ..reading.intake import Intake
from ..reading.partition_rows import partition_reader
from ..reading.source import IndexedSource, StreamSource
from ..reading.sources import open_reader
from ..server.arguments import declared
from ..shaping.plan import Read
from . import exits
from .frame import with_options
from .local import LocalFeed
from .options import JSON
from .pipelines import PIPELINES, load
from .progress import Progress, count, reporting_cache, size

#: Sources whose examples are only counted by going through their files.
_SCANNED: Final = ("tfrecord", "jsonl")
#: Where files of these weigh more together, only the smallest of them is opened.
_QUICK_BYTES: Final = 1 << 28
_BATCHES: Final = 3
_ROWS: Final = 1024
#: Rows by which an example after the stages is weighed; functions may be slow.
_WEIGHED_ROWS: Final = 8
_MOST_TEXTS: Final = 10


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
    full: go through every example and all stages, not only the first batches
    """
    declarations = declared(load(options.pipelines)).items()
    found = [survey(name, d, options.partitions, options.full) for name, d in declarations]
    ok = all(one.ok for one in found)
    if options.json:
        feeds = [{**asdict(one), "ok": one.ok} for one in found]
        print(json.dumps({"ok": ok, "feeds": feeds}))
    else:
        print("\n\n".join("\n".join(one.lines()) for one in found))
    return exits.WELL if ok else exits.FAILED


@dataclass
class Survey:
    """The findings.  None stands for an unknown value."""

    feed: str
    source: str
    shape: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    indexed: bool | None = None
    examples: int | None = None
    shuffle: str = "none"
    batch_rows: float | None = None
    batch_bytes: int | None = None
    slab_bytes: int | None = None  # of a worker
    waiting_examples: int | None = None  # of a partition, at most
    waiting_bytes: int | None = None
    state_bytes: int | None = None  # of the states of the examples that wait
    scanned: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """Return the findings as lines of text."""
        lines = [f"{self.feed}: {'ok' if self.ok else 'not ok'}"]
        lines += [f"  problem   {text}" for text in self.problems]
        lines += [f"  note      {text}" for text in self.notes]
        return lines + [f"  {name:<10}{text}" for name, text in self._facts()]

    def _facts(self) -> Iterator[tuple[str, str]]:
        several = "s" * (self.files > 1)
        files = f", {count(self.files)} file{several}, {size(self.bytes)}" if self.files else ""
        yield "source", f"{self.source}{files}"
        if self.indexed is not None:
            unknown = "not known before all are read (--full counts them)"
            yield "examples", unknown if self.examples is None else count(self.examples)
            yield "reading", "by number, from anywhere" if self.indexed else "forward only"
            yield "shuffle", self.shuffle
        if self.batch_rows is not None and self.batch_bytes is not None:
            batch = f"{self.batch_rows:.3g} rows, {size(self.batch_bytes)}"
            yield "batches", f"{batch}, by the first of them"
            yield "memory", self._memory()
        if self.scanned is not None:
            yield "checked", f"all {count(self.scanned)} examples"
            for reason, n in self.dropped.items():
                yield "left out", f"{count(n)} {reason}"

    def _memory(self) -> str:
        slab = f"slab of a worker {size(self.slab_bytes or 0)}"
        if self.waiting_examples is None:
            return f"{slab}; any number of examples may wait in a partition"
        weight = "" if self.waiting_bytes is None else f", {size(self.waiting_bytes)}"
        waiting = f"up to {count(self.waiting_examples)} examples wait in a partition{weight}"
        states = f"; their states {size(self.state_bytes)}" if self.state_bytes else ""
        return f"{slab}; {waiting}{states}"


class _Noted(BadRecords):
    """Counts bad records, and notes the texts of the first."""

    def __init__(self) -> None:
        super().__init__(skip=True)
        self.texts: list[str] = []

    def report(self, error: DataError, reason: str = "bad_record", rows: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + rows
        if len(self.texts) < _MOST_TEXTS:
            self.texts.append(str(error))


def survey(feed: str, declaration: Declaration, partitions: int, full: bool) -> Survey:
    """Look at a pipeline; with ``full`` at every example of it."""
    found = Survey(feed, declaration.source.kinds, str(declaration.shape.kind))
    try:
        files = resolve(declaration.source.paths)
        found.files, found.bytes = len(files), sum(file.size for file in files)
        some = files
        if not full and declaration.source.kind in _SCANNED and found.bytes > _QUICK_BYTES:
            some = (min((file for file in files if file.size), key=lambda file: file.size),)
        cache = reporting_cache(some)
        open_reader(declaration.source, some, _Noted(), cache).close()
        if full:
            _scan(found, declaration, some, cache)
        if found.ok:
            _look(found, declaration, some, partitions, cache)
    except exits.SHOWN as error:
        found.problems.append(str(error))
    return found


def _look(
    found: Survey,
    declaration: Declaration,
    files: tuple[DataFile, ...],
    partitions: int,
    cache: IndexCache,
) -> None:
    """Find how it is read, and the size of the first batches."""
    bad = BadRecords(declaration.policy.on_bad_example == "skip")
    with closing(open_reader(declaration.source, files, bad, cache)) as reader:
        _reading(found, reader, declaration.order, partitions, len(files) == found.files)
    if not found.ok:
        return
    with LocalFeed(declaration, files, bad, cache, partitions) as local:
        first = [(one.rows, one.nbytes) for one in islice(local.batches(), _BATCHES)]
        for reason, n in local.run.dropped().items():
            text = f"among the examples of the first batches {n} are left out: {reason}"
            found.notes.append(text)
        if not first:
            text = "the first partition makes no batch: too few examples come in"
            found.problems.append(text)
            return
        intake = local.run.intake
        chunk, _ = intake.chunk(Read(0, 0, intake.start, _WEIGHED_ROWS))
    rows, sizes = zip(*first, strict=True)
    found.batch_rows, found.batch_bytes = sum(rows) / len(rows), max(sizes)
    _memory(found, declaration, max(sizes))
    if found.waiting_examples is not None and len(chunk):
        nbytes = sum(flattened(column).nbytes for column in chunk.columns.values()) // len(chunk)
        found.waiting_bytes = found.waiting_examples * nbytes


def _reading(
    found: Survey, reader: StreamSource, order: ReadingOrder, partitions: int, all_files: bool
) -> None:
    """Find how the source is read, and whether each partition has something of it."""
    if order.seed is not None:
        found.shuffle = "not possible"
    found.indexed = isinstance(reader, IndexedSource)
    if isinstance(reader, IndexedSource):
        if all_files:
            found.examples = reader.length
        if not reader.length:
            found.problems.append("the source has no example")
    elif partitions > reader.streams:
        found.notes.append(
            f"{partitions} partitions of {reader.streams} streams: each partition reads and parses "
            "all of the source and keeps its share; have as many files as partitions"
        )
    for partition in (0, partitions - 1):
        share = partition_reader(reader, order, partition, partitions)
        if all_files and share.share == 0:
            found.problems.append(
                f"partition {partition} of {partitions} is empty: the source has "
                f"{share.holds}; use fewer partitions"
            )
            break
    if order.seed is not None:
        found.shuffle = "exact" if order.window is None else f"within windows of {order.window}"


def _memory(found: Survey, declaration: Declaration, batch_bytes: int) -> None:
    """Estimate the memory that it takes at most."""
    options, window = declaration.shape.options, declaration.order.window
    if declaration.segmented:
        found.slab_bytes = 2 * batch_bytes  # made when wanted
        found.waiting_examples = options["capacity"]
        if options["state_placement"] != "trainer" and found.waiting_examples is not None:
            states = (one for one in options["initial_states"] if "dtype" in one and "shape" in one)
            state_bytes = sum(StateSource.of(one).blank(1).nbytes for one in states)
            found.state_bytes = state_bytes * found.waiting_examples
    else:
        shape = declaration.shape.made()
        most, most_bytes = RunConfig((), "", ()).ahead(shape.capacity, 1)
        ahead = max(2, min(most, -(-most_bytes // max(1, batch_bytes))))
        found.slab_bytes = (ahead + 1) * batch_bytes
        found.waiting_examples = shape.most_waiting
    if window is not None and not found.indexed:
        found.waiting_examples = (found.waiting_examples or 0) + window


def _scan(
    found: Survey, declaration: Declaration, files: tuple[DataFile, ...], cache: IndexCache
) -> None:
    """Read every example, run the stages, and see whether the shape can place it."""
    bad, rows = _Noted(), 0
    whole = replace(declaration, order=ReadingOrder(), policy=Policy("skip"))
    with closing(open_reader(declaration.source, files, bad, cache)) as reader:
        intake = Intake(reader, whole, 0, 1, bad)
        if intake.fields is None and whole.segmented:
            text = "no example shows what map gives: declare it with map(…, schema=…)"
            raise DataError(text)
        check_shape = shape_check(whole.shape, intake.fields or {}, bad)
        position: Any = intake.start
        known = reader.length if isinstance(reader, IndexedSource) else None
        progress = Progress("checking", known, "examples")
        while position is not None:
            intake.begin()
            chunk, position = intake.chunk(Read(0, 0, position, _ROWS))
            check_shape(chunk)
            intake.end()
            rows += len(chunk)
            if known is None:
                found.scanned = rows + sum(intake.dropped.values())
            else:
                found.scanned = known if position is None else position
            progress.to(found.scanned)
    found.dropped = dict(intake.dropped)
    _judge(found, declaration.policy, bad.texts)


def _judge(found: Survey, policy: Policy, texts: list[str]) -> None:
    """Note whether the feed would end by its bad examples."""
    bad = {reason[4:]: n for reason, n in found.dropped.items() if reason.startswith("bad:")}
    number = sum(bad.values())
    if not number:
        return
    listed = ", ".join(f"{n} {reason}" for reason, n in sorted(bad.items()))
    rule, most = f"{number} examples break a rule ({listed})", policy.max_bad_examples
    if policy.on_bad_example == "fail":
        found.problems += [rule, *texts]
    elif most is not None and number > most:
        found.problems += [f"{rule}, and max_bad_examples={most} are allowed", *texts]
    else:
        found.notes += [f"{rule} and are skipped", *texts]
