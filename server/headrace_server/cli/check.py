"""``headrace check``: would this pipeline work?

    files ─► reader ─► first batches ─────────────► how it is read, what a batch weighs
                └────► all examples (``full``) ───► what breaks a rule

A finding that would stop the feed is a problem; the survey notes it, and goes on as far as it can.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np

from headrace_proto.errors import DataError

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile, is_remote, resolve
from ..files.ranges import BLOCK as PIECE
from ..files.ranges import REQUEST_BYTES
from ..partition.composition import drops_of, shape_check
from ..partition.feed_length import DROPPED, FeedLength
from ..pipeline.builder import BLOCK_BYTES
from ..pipeline.declaration import Declaration, Policy, ReadingOrder, Stage
from ..process.option import Option
from ..process.settings import Limits
from ..reading.chunk import BadRecords, Chunk
from ..reading.intake import Intake
from ..reading.partition_rows import partition_reader
from ..reading.source import IndexedSource, StreamSource
from ..reading.sources import open_reader
from ..server.arguments import declared, index_directory
from ..shaping.plan import Position, Read
from . import exits
from .frame import with_options
from .local import LocalFeed
from .pipelines import PIPELINES, load
from .progress import Progress, count, counted, reporting_cache, size

#: Sources of which a row is decoded with all of its row group, or record batch.
_GROUPED: Final = ("parquet", "arrow")
#: Sources of which a worker copies whole files to its disk.
_WHOLE: Final = ("npz", "tokens")
#: Sources whose examples are only counted by going through their files.
_SCANNED: Final = ("tfrecord", "jsonl")
#: Where files of these weigh more together, only the smallest of them is opened.
_QUICK_BYTES: Final = 1 << 28
#: Bytes of remote files that a worker keeps in memory by default.
_KEPT_BYTES: Final = Limits().remote_cache_bytes
_BATCHES: Final = 3
_ROWS: Final = 1024
_MOST_TEXTS: Final = 10


@with_options(
    PIPELINES,
    Option("partitions", "integer", default=1, least=1),
    Option("full", "flag", default=False),
    Option("count", "flag", default=False),
    Option("state_dir", "path"),
)
def check(options: Namespace) -> int:
    """Look at pipelines and their files without a server: whether they work, how they are
    read, and how large their batches are.  Ends with 1 where there is a problem.  Without
    --full large record files are judged by the smallest of them.

    partitions: slices of each feed
    full: go through every example and all stages, not only the first batches
    count: go through every example where len(feed) needs it, and store what it needs; again after
        a function of the pipeline was changed
    state_dir: the directory of the server, for --count
    """
    declarations = declared(load(options.pipelines)).items()
    index = None
    if options.count:
        if not options.state_dir:
            raise ValueError("--count needs --state-dir, where the server finds what was counted")
        index = index_directory(options.state_dir)
    found = [
        Survey(name, d, options.partitions, index).look(options.full) for name, d in declarations
    ]
    print("\n\n".join("\n".join(one.lines()) for one in found))
    return exits.FAILED if any(one.problems for one in found) else exits.WELL


@dataclass
class _Noted(BadRecords):
    """Counts bad records, and notes the texts of the first.  A copy notes its own."""

    skip: bool = True
    texts: list[str] = field(default_factory=list, init=False)

    def report(self, error: DataError, reason: str = "bad_record", rows: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + rows
        if len(self.texts) < _MOST_TEXTS:
            self.texts.append(str(error))


@dataclass
class Survey:
    """The findings: problems, notes, and facts as texts by their names."""

    feed: str
    declaration: Declaration
    partitions: int
    index: str | None = None  # where what len(feed) needs is stored
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the findings as lines of text."""
        lines = [f"{self.feed}: {'not ok' if self.problems else 'ok'}"]
        lines += [f"  problem   {text}" for text in self.problems]
        lines += [f"  note      {text}" for text in self.notes]
        return lines + [f"  {name:<10}{text}" for name, text in self.facts.items()]

    def look(self, full: bool) -> Survey:
        """Look at the pipeline; with ``full`` at every example of it."""
        declaration = self.declaration
        try:
            files = resolve(declaration.source.paths)
            nbytes = sum(file.size for file in files)
            listed = f", {counted(len(files), 'file')}, {size(nbytes)}"
            self.facts["source"] = f"{declaration.source.kinds}{listed if files else ''}"
            some = files
            if not full and declaration.source.kind in _SCANNED and nbytes > _QUICK_BYTES:
                some = (min((file for file in files if file.size), key=lambda file: file.size),)
            cache = reporting_cache(some, self.index)
            open_reader(declaration.source, some, _Noted(), cache).close()
            if full:
                self._scan(some, cache)
            bad = BadRecords(declaration.policy.on_bad_example == "skip")
            if not self.problems:
                with closing(open_reader(declaration.source, some, bad, cache)) as reader:
                    self._read(reader, some == files)
                    if all(is_remote(file.path) for file in files):
                        self._weigh(reader, some)
            if not self.problems:
                with LocalFeed(declaration, some, bad, cache, self.partitions) as local:
                    self._make(local)
            if not self.problems and self.index:
                self._count(files, cache)
        except exits.SHOWN as error:
            self.problems.append(str(error))
        return self

    def _read(self, reader: StreamSource, all_files: bool) -> None:
        """Find how the source is read, and whether each partition has something of it."""
        order, partitions, facts = self.declaration.order, self.partitions, self.facts
        unknown = "not known before all are read (--full counts them)"
        facts |= {"examples": unknown, "reading": "forward only"}
        if order.blocks is not None:
            reader = reader.by_number() or reader
        if isinstance(reader, IndexedSource):
            facts["reading"] = "by number, from anywhere"
            if all_files:
                facts["examples"] = count(reader.length)
            if not reader.length:
                self.problems.append("the source has no example")
        elif partitions > reader.streams:
            self.notes.append(
                f"{partitions} partitions of {reader.streams} streams: each partition reads and "
                "parses all of the source and keeps its share; have as many files as partitions"
            )
        if order.seed is not None:
            facts["shuffle"] = "not possible"
        for partition in (0, partitions - 1):
            share = partition_reader(reader, order, partition, partitions)
            if all_files and share.share == 0:
                self.problems.append(
                    f"partition {partition} of {partitions} is empty: the source has "
                    f"{share.holds}; use fewer partitions"
                )
                break
        kind = "exact" if order.window is None else f"within windows of {order.window}"
        if order.blocks is not None:
            kind = f"of {share.holds}, {order.blocks} at a time in each partition"
        facts["shuffle"] = "none" if order.seed is None else kind

    def _weigh(self, reader: StreamSource, files: tuple[DataFile, ...]) -> None:
        """Find what reading costs at a store: requests, and bytes for each byte of a row."""
        source, order = self.declaration.source, self.declaration.order
        if order.blocks is not None:
            reader = reader.by_number() or reader
        if not isinstance(reader, IndexedSource) or not reader.length or not files:
            return
        kinds, nbytes = {leaf.kind for leaf in source.leaves}, sum(file.size for file in files)
        if kinds <= {*_WHOLE}:
            once = f"each worker reads all files whole, {size(nbytes)}, when it starts"
            self.facts["store"] = f"{once}, for any order"
            return
        rows, exact = reader.length, order.seed is not None and not (order.window or order.blocks)
        blocks = len(reader.blocks(order.block_bytes or BLOCK_BYTES))
        alone = min(nbytes / rows + PIECE, nbytes)
        if grouped := bool(kinds & {*_GROUPED}):
            alone = nbytes / blocks
        costs = f"a row costs {max(blocks, nbytes / REQUEST_BYTES) / rows:.2g} requests and "
        costs += f"{size(nbytes // rows)} by blocks, by a window or in order, and "
        if nbytes <= _KEPT_BYTES:
            costs += "in an exact shuffle, since the files fit into --remote-cache-bytes"
        else:
            costs += f"{max(1.0, alone / REQUEST_BYTES):.2g} and {size(int(alone))} in an exact "
            costs += f"shuffle; with --cache-dir no part of the {size(nbytes)} is fetched twice"
        self.facts["store"] = costs
        if exact and (grouped or nbytes > _KEPT_BYTES):
            what = "decodes a whole row group, or record batch, for each row"
            if not grouped:
                what = f"reads {alone * rows / nbytes:.2g} bytes for each byte of a row"
            self.notes.append(
                f"an exact shuffle of these files {what}: shuffle(blocks=16) reads each block once"
            )

    def _make(self, local: LocalFeed) -> None:
        """Make the first batches."""
        first = [(s.made.rows, s.made.nbytes) for s in islice(local.batches(), _BATCHES)]
        dropped = local.run.dropped()
        if "num_buckets" in self.declaration.shape.options:
            boundaries = local.declaration.shape.options["boundaries"]
            self.facts["buckets"] = f"{', '.join(map(str, boundaries))}, by a sample of lengths"
        for reason, n in dropped.items():
            self.notes.append(f"left out of the first: {counted(n, 'example')}, {reason}")
        if first:
            rows, sizes = zip(*first, strict=True)
            mean = f"{sum(rows) / len(rows):.3g} rows"
            self.facts["batches"] = f"{mean}, {size(max(sizes))}, by the first"
        else:
            why = drops_of(self.declaration.shape, dropped) or "too few examples come in"
            self.problems.append(f"the first partition makes no batch: {why}")

    def _scan(self, files: tuple[DataFile, ...], cache: IndexCache) -> None:
        """Read every example, run the stages, and see whether the shape can place it."""
        bad, whole = _Noted(), self.declaration
        if whole.source.kind == "mix":  # each of its sources to the end, once
            every, (stage, *others) = len(whole.source.parts), whole.stages
            once = {"orders": [asdict(ReadingOrder())] * every, "stop": "all"}
            alike = {**stage.options, "schedule": [[0, [1.0] * every]]}
            source = replace(whole.source, options={**whole.source.options, **once})
            whole = replace(whole, source=source, stages=(Stage("mix", alike), *others))
        whole = replace(whole, order=ReadingOrder(), policy=Policy("skip"))
        with closing(open_reader(whole.source, files, bad, cache)) as reader:
            intake = Intake(reader, whole, 0, 1, bad)
            if intake.fields is None and whole.segmented:
                text = "no example shows what map gives: declare it with map(…, schema=…)"
                raise DataError(text)
            for _ in self._walk(whole, reader, intake, bad):
                pass
        for reason, n in intake.dropped.items():
            self.notes.append(f"left out: {counted(n, 'example')}, {reason}")
        self._judge(intake.dropped, bad.texts)

    def _walk(
        self, declaration: Declaration, reader: StreamSource, intake: Intake, bad: BadRecords
    ) -> Iterator[tuple[Chunk, np.ndarray]]:
        """Yield all rows of the source that the shape can place, with their steps."""
        check_shape = shape_check(declaration.shape, intake.fields or {}, bad)
        position: Position | None = intake.start
        known = reader.length if isinstance(reader, IndexedSource) else None
        progress, rows = Progress("checking", known, "examples"), 0
        while position is not None:
            intake.begin()
            chunk, position = intake.chunk(Read(0, 0, position, _ROWS))
            yield check_shape(chunk)
            intake.end()
            rows += len(chunk)
            scanned = rows + sum(intake.dropped.values())
            if known is not None:
                scanned = known if position is None else position
            self.facts["checked"] = f"all {counted(scanned, 'example')}"
            progress.to(scanned)

    def _count(self, files: tuple[DataFile, ...], cache: IndexCache) -> None:
        """Find how many batches there are; store the steps of all examples if that needs them."""
        whole = self.declaration
        bad = BadRecords(whole.policy.on_bad_example == "skip")
        with closing(open_reader(whole.source, files, bad, cache)) as reader:
            forward = replace(whole, order=ReadingOrder())
            intake = Intake(reader, forward, 0, 1, bad)
            length = FeedLength(self.feed, whole, files, reader, intake.fields or {}, cache)

            def steps() -> np.ndarray:
                found = np.full(reader.length, DROPPED, np.int64)  # type: ignore[attr-defined]
                for chunk, steps in self._walk(forward, reader, intake, bad):
                    found[chunk.ordinals] = steps
                return found

            ranks = whole.segmented and whole.shape.options["order"] != "lanes"
            if not whole.uncounted(ranks) and isinstance(length.steps, str) and length.countable:
                length.steps = cache.get(*length.entry, steps)
            number = length.of(range(self.partitions), self.partitions, int(ranks), 0)
        of = ", of the only rank" if ranks else ""
        known = f"{count(number)} batches{of}" if isinstance(number, int) else f"unknown: {number}"
        self.facts["length"] = known

    def _judge(self, dropped: Mapping[str, int], texts: list[str]) -> None:
        """Note whether the feed would end by its bad examples."""
        policy = self.declaration.policy
        bad = {reason[4:]: n for reason, n in dropped.items() if reason.startswith("bad:")}
        number, most = sum(bad.values()), policy.max_bad_examples
        listed = ", ".join(f"{n} {reason}" for reason, n in sorted(bad.items()))
        rule = f"{counted(number, 'bad example')} ({listed})"
        if number and policy.on_bad_example == "fail":
            self.problems += [rule, *texts]
        elif most is not None and number > most:
            self.problems += [f"{rule}, more than max_bad_examples={most}", *texts]
        elif number:
            self.notes += [f"{rule} skipped", *texts]
