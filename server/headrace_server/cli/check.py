"""``headrace check``: would this pipeline work, and what would it cost?

    files ─► reader ─► first batches ─────────────► how it is read, what a batch weighs
                └────► all examples (``full``) ───► what breaks a rule, checksums of columns

A finding that would stop the feed is a problem; the survey notes it, and goes on as far as it can.
"""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from headrace_proto.errors import DataError

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile, resolve
from ..making.composition import segmented, shape_check
from ..making.segment_cutting import StateSource
from ..pipeline.declaration import Declaration, Policy, ReadingOrder, convertible
from ..process.config import RunConfig
from ..process.option import Option
from ..reading.chunk import BadRecords
from ..reading.columns import ColumnSum, flattened
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
#: Files of these that weigh more together are judged by the smallest of them.
_QUICK_BYTES: Final = 1 << 28
_BATCHES: Final = 3
_PROBE_ROWS: Final = 64
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
    full: go through every example, its checksums and all stages, not only the first batches
    """
    declarations = declared(load(options.pipelines)).items()
    found = [survey(name, d, options.partitions, options.full) for name, d in declarations]
    ok = all(one.ok for one in found)
    if options.json:
        feeds = [{**dataclasses.asdict(one), "ok": one.ok} for one in found]
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
    examples: int | None = None
    estimated: bool = False  # the number of examples is
    example_bytes: int | None = None  # as it is read
    seconds: dict[str, float] = field(default_factory=dict)  # of an example, by reading and stage
    indexed: bool | None = None
    streams: int | None = None
    partitions_possible: int | None = None
    shuffle: str = "none"
    batch_rows: float | None = None
    batch_bytes: int | None = None
    batches_per_epoch: int | None = None
    slab_bytes: int | None = None  # of a worker
    chunk_examples: int | None = None  # that a partition takes through the stages together …
    chunk_bytes: int | None = None  # … as they are after the stages
    waiting_examples: int | None = None  # of a partition, at most
    waiting_bytes: int | None = None
    state_bytes: int | None = None  # of the states of the examples that wait
    scanned: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """Return the findings as lines of text."""
        lines = [f"{self.feed}: {'ok' if self.ok else 'not ok'}"]
        lines += [f"  problem   {text}" for text in self.problems]
        lines += [f"  note      {text}" for text in self.notes]
        return lines + [f"  {name:<10}{text}" for name, text in self._facts() if text]

    def _facts(self) -> Iterator[tuple[str, str]]:
        several = "s" * (self.files > 1)
        files = f", {count(self.files)} file{several}, {size(self.bytes)}" if self.files else ""
        yield "source", f"{self.source}{files}"
        most = count(self.partitions_possible or 0)
        if self.indexed is not None:
            yield "examples", self._examples()
            if self.indexed:
                yield "reading", f"by number, from anywhere; up to {most} partitions"
            else:
                streams = f"streams: {self.streams}; up to {most} partitions are worth having"
                yield "reading", f"forward only, {streams}"
            yield "shuffle", self.shuffle
        if self.batch_rows is not None and self.batch_bytes is not None:
            text = f"{self.batch_rows:.3g} rows, {size(self.batch_bytes)}, by the first of them"
            if self.batches_per_epoch is not None:
                text += f"; {count(self.batches_per_epoch)} an epoch"
            yield "batches", text
            yield "memory", self._memory()
            yield "time", self._time()
        if self.scanned is not None:
            yield "checked", f"all {count(self.scanned)} examples"
            for reason, n in self.dropped.items():
                yield "left out", f"{count(n)} {reason}"
            for name, total in self.checksums.items():
                yield "checksum", f"{name} {total}"

    def _examples(self) -> str:
        if self.examples is None:
            return "not known before all are read (--full counts them)"
        weight = "" if self.example_bytes is None else f", some {size(self.example_bytes)} each"
        return f"{'about ' * self.estimated}{count(self.examples)}{weight}"

    def _time(self) -> str:
        """Return what reading and each stage take of an example's time, the slowest first."""
        slowest = sorted(self.seconds.items(), key=lambda one: -one[1])
        return ", ".join(f"{name} {_duration(seconds)}" for name, seconds in slowest)

    def _memory(self) -> str:
        text = f"slab of a worker {size(self.slab_bytes or 0)}; "
        if self.chunk_examples is not None and self.chunk_bytes is not None:
            together = count(self.chunk_examples)
            weight = f"{size(self.chunk_bytes)}, twice that while they are joined"
            text += f"{together} examples pass the stages together, {weight}; "
        if self.waiting_examples is None:
            text += "any number of examples may wait in a partition"
        else:
            weight = "" if self.waiting_bytes is None else f", {size(self.waiting_bytes)}"
            waiting = count(self.waiting_examples)
            text += f"up to {waiting} examples wait in a partition{weight}"
        return f"{text}; their states {size(self.state_bytes)}" if self.state_bytes else text


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
    found = Survey(feed, declaration.source.kinds, declaration.shape.kind)
    try:
        files = resolve(declaration.source.paths)
        found.files, found.bytes = len(files), sum(file.size for file in files)
        some = files if full else _few(declaration, files)
        cache = reporting_cache(some)
        open_reader(declaration.source, some, _Noted(), cache).close()
        surveyor = _Surveyor(found, declaration, some, partitions, cache)
        if full:
            surveyor.scan()
        if found.ok:
            surveyor.look()
    except exits.SHOWN as error:
        found.problems.append(str(error))
    return found


def _few(declaration: Declaration, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
    """Return the files that are opened without ``full``."""
    if declaration.source.kind in _SCANNED and sum(file.size for file in files) > _QUICK_BYTES:
        return (min((f for f in files if f.size), key=lambda file: file.size, default=files[0]),)
    return files


@dataclass(frozen=True)
class _Surveyor:
    """Adds to the findings of one pipeline."""

    found: Survey
    declaration: Declaration
    files: tuple[DataFile, ...]  # those that are opened
    partitions: int
    cache: IndexCache

    # A look

    def look(self) -> None:
        """Find how it is read, and the size of the first batches."""
        found, declaration = self.found, self.declaration
        bad = BadRecords(declaration.policy.on_bad_example == "skip")
        with closing(open_reader(declaration.source, self.files, bad, self.cache)) as reader:
            self._reading(reader)
            found.example_bytes = _weight(reader)
        if not found.ok:
            return
        with LocalFeed(declaration, self.files, bad, self.cache, self.partitions) as local:
            first = [(one.rows, one.nbytes) for one in islice(local.batches(), _BATCHES)]
            for reason, n in local.run.dropped().items():
                text = f"among the examples of the first batches {n} are left out: {reason}"
                found.notes.append(text)
            if first:
                weight = self._weigh_stages(local.run.intake, local.run.most_rows)
        if not first:
            found.problems.append("the first partition makes no batch: too few examples come in")
            return
        rows, sizes = zip(*first, strict=True)
        found.batch_rows, found.batch_bytes = sum(rows) / len(rows), max(sizes)
        if not declaration.stages and not segmented(declaration) and found.examples:
            found.batches_per_epoch = round(found.examples / found.batch_rows)
        self._memory(found.batch_bytes, weight)

    def _weigh_stages(self, intake: Intake, most: int | None) -> int | None:
        """Return the bytes of an example after the stages, and note what the stages take."""
        found, rows = self.found, max(1, intake.rows_read)
        found.seconds = {name: spent / rows for name, spent in intake.stages.seconds.items()}
        chunk, _ = intake.chunk(Read(0, 0, intake.start, _WEIGHED_ROWS))
        if not len(chunk):
            return None
        nbytes = sum(flattened(column).nbytes for column in chunk.columns.values())
        if self.declaration.stages:
            found.chunk_examples = intake.together(most)
            found.chunk_bytes = found.chunk_examples * nbytes // _WEIGHED_ROWS
        return nbytes // len(chunk)

    def _reading(self, reader: StreamSource) -> None:
        found, partitions, order = self.found, self.partitions, self.declaration.order
        if order.seed is not None:
            found.shuffle = "not possible"
        found.indexed = isinstance(reader, IndexedSource)
        if isinstance(reader, IndexedSource):
            found.examples = found.partitions_possible = reader.length
            read = sum(file.size for file in self.files)
            if read != found.bytes:
                found.examples = round(reader.length * found.bytes / max(1, read))
                found.estimated = True
                found.partitions_possible = found.examples
            if not found.examples:
                found.problems.append("the source has no example")
        else:
            found.streams = found.partitions_possible = reader.streams
            if partitions > reader.streams:
                found.notes.append(
                    f"{partitions} partitions of {reader.streams} streams: each partition reads "
                    "and parses all of the source and keeps its share; have as many files as "
                    "partitions"
                )
            sampled = len(convertible(self.declaration.stages)[1])
            found.examples = None if sampled else found.scanned
        for partition in (0, partitions - 1):
            share = partition_reader(reader, order, partition, partitions)
            if not found.estimated and share.share == 0:
                found.problems.append(
                    f"partition {partition} of {partitions} is empty: the source has "
                    f"{share.holds}; use fewer partitions"
                )
                break
        if order.seed is not None:
            found.shuffle = "exact" if order.window is None else f"within windows of {order.window}"

    def _memory(self, batch_bytes: int, example_bytes: int | None) -> None:
        """Estimate the memory that it takes at most, from the first examples.

        ``example_bytes``: those of an example after the stages.
        """
        found, options, run = self.found, self.declaration.shape.options, RunConfig((), "", ())
        if segmented(self.declaration):
            found.slab_bytes = 2 * batch_bytes  # made when wanted
            found.waiting_examples = options["capacity"]
            epochs = self.declaration.order.epochs
            if found.examples is not None and epochs is not None and not self.declaration.stages:
                every = found.examples * epochs
                found.waiting_examples = min(found.waiting_examples or every, every)
            if options["state_placement"] != "trainer" and found.waiting_examples is not None:
                states = (
                    one for one in options["initial_states"] if "dtype" in one and "shape" in one
                )
                state_bytes = sum(StateSource.of(one).blank(1).nbytes for one in states)
                found.state_bytes = state_bytes * found.waiting_examples
        else:
            most, most_bytes = run.ahead(options.get("capacity"), 1)
            ahead = max(2, min(most, -(-most_bytes // max(1, batch_bytes))))
            found.slab_bytes = (ahead + 1) * batch_bytes
            found.waiting_examples = _waiting(options)
        window = self.declaration.order.window
        if window is not None and not found.indexed:
            found.waiting_examples = (found.waiting_examples or 0) + window
        if found.waiting_examples is not None and example_bytes is not None:
            found.waiting_bytes = found.waiting_examples * example_bytes

    # All of it

    def scan(self) -> None:
        """Read every example, run the stages, and see whether the shape can place it."""
        found, source, bad = self.found, self.declaration.source, _Noted()
        whole = replace(self.declaration, order=ReadingOrder(), policy=Policy("skip"))
        with closing(open_reader(source, self.files, bad, self.cache)) as reader:
            intake = Intake(reader, whole, 0, 1, bad)
            if intake.fields is None and segmented(whole):
                text = "no example shows what map gives: declare it with map(…, schema=…)"
                raise DataError(text)
            check_shape = shape_check(whole.shape, intake.fields or {}, bad)
            sums: dict[str, ColumnSum] = {}
            position: Any = intake.start
            rows = found.scanned = 0
            known = reader.length if isinstance(reader, IndexedSource) else None
            progress = Progress("checking", known, "examples")
            while position is not None:
                intake.begin()
                chunk, position = intake.chunk(Read(0, 0, position, _ROWS))
                check_shape(chunk)
                for name, column in chunk.columns.items():
                    sums.setdefault(name, ColumnSum()).add(flattened(column))
                intake.end()
                rows += len(chunk)
                if known is None:
                    found.scanned = rows + sum(intake.dropped.values())
                else:
                    found.scanned = known if position is None else position
                progress.to(found.scanned)
        found.dropped = dict(intake.dropped)
        found.checksums = {name: total.text for name, total in sums.items()}
        self._judge(bad.texts)

    def _judge(self, texts: list[str]) -> None:
        """Note whether the feed would end by its bad examples."""
        found, policy = self.found, self.declaration.policy
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


def _duration(seconds: float) -> str:
    """Return a short time as text."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _weight(reader: StreamSource) -> int | None:
    """Return the bytes of an example as it is read, by the first ones."""
    if isinstance(reader, IndexedSource):
        chunk = reader.take(slice(0, min(_PROBE_ROWS, reader.length)))
    else:
        chunk, _ = reader.read(0, b"", _PROBE_ROWS)
    if not len(chunk):
        return None
    return sum(flattened(column).nbytes for column in chunk.columns.values()) // len(chunk)


def _waiting(options: Any) -> int | None:
    """Return how many rows may wait in a partition until a batch is full."""
    if options.get("max_examples_in_flight") is not None:
        return int(options["max_examples_in_flight"])
    if "probs" in options:
        return None
    sizes = options.get("batch_sizes") or [options["batch_size"]]
    return None if None in sizes else sum(sizes)
