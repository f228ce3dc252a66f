"""How many batches a feed has, from the lengths of its examples alone.

    steps of the source, or those that ``headrace check --count`` has stored
         ─► the order of a partition ─► lanes ─► batches

Payload is not read.  Where reading would be needed there is a reason in place of a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headrace_proto.schema import Field

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..making.segment_cutting import Cutting
from ..pipeline.declaration import Declaration, convertible
from ..pipeline.segment_options import columns_by_name
from ..reading.chunk import Chunk
from ..reading.columns import Rows, numbers_of
from ..reading.partition_rows import partition_reader
from ..reading.source import IndexedSource, StreamSource
from ..shaping.lane_count import rounds

#: Number of examples that are counted at once, cut or whole: about a second's work.
_MOST, _MOST_ROWS = 1 << 20, 1 << 24
#: Stages after which sequences are as long as before.
_KEEP_STEPS = ("select", "with_origin")
#: Stages that drop examples, and make no more of them.
_MAY_DROP = ("filter", "keep")
#: Steps of an example that the stages, or the shape, drop.
DROPPED = -1


class Lengths(IndexedSource):
    """A source with the steps of examples in their place, without those that are dropped."""

    fields: Mapping[str, Field] = {"steps": Field("int64")}

    def __init__(self, steps: np.ndarray, reader: IndexedSource) -> None:
        self._steps, self.length, self.blocks = steps, len(steps), reader.blocks  # type: ignore[method-assign]

    def take(self, rows: Rows) -> Chunk:
        numbers = numbers_of(rows)
        steps = self._steps[numbers]
        kept = steps != DROPPED
        return Chunk.of({"steps": steps[kept]}, numbers[kept], "")


@dataclass(eq=False)
class FeedLength:
    """The number of batches of one feed."""

    feed: str
    declaration: Declaration
    files: tuple[DataFile, ...]
    reader: StreamSource
    fields: Mapping[str, Field]  # of an example after the stages
    cache: IndexCache
    _found: dict[tuple[int, int], int | str] = field(default_factory=dict)

    def of(self, own: Sequence[int], partitions: int, world: int, epoch: int) -> int | str:
        """Return how many batches these partitions make for one trainer, or for each rank; or why
        nobody knows.

        They are those of an epoch where batches end with it, else of all epochs.
        """
        order = self.declaration.order
        epochs = range(order.epochs or 1)
        if not order.across_batches:
            if order.epochs is not None:
                epoch = min(epoch, order.epochs - 1)
            epochs = range(epoch, epoch + 1) if self._varies else range(1)
        key = world, epochs.start
        if key not in self._found:
            self._found[key] = self._counted(own, partitions, world, epochs)
        return self._found[key]

    @property
    def _varies(self) -> bool:
        """Whether epochs differ in what is known of examples."""
        order = self.declaration.order
        phased = self.declaration.segmented and self.declaration.shape.options["phase"] is not None
        return phased or (order.seed is not None and order.reshuffle)

    def _counted(self, own: Sequence[int], partitions: int, world: int, epochs: range) -> int | str:
        declaration, steps = self.declaration, self.steps
        if reason := declaration.uncounted(world > 0):
            return reason
        if isinstance(steps, str):
            return steps
        each = declaration.segmented or self._drops
        most = _MOST if declaration.segmented else _MOST_ROWS
        if each and len(steps) * len(epochs) > most:
            return f"{len(steps) * len(epochs)} examples are more than are counted ({most})"
        assert self._numbered is not None
        reader, total = Lengths(steps, self._numbered), 0
        for number in own:
            share = partition_reader(reader, declaration.order, number, partitions)
            count = share.share or 0
            if not each:
                total += declaration.batches_of(count * len(epochs)) // max(1, world)
                continue
            chunks = [share.read(epoch, share.start, count)[0] for epoch in epochs]
            if declaration.segmented:
                found = self._rounds(chunks, epochs, world)
                if found is None:
                    return "its rows have more examples than a message can describe"
                total += found
            else:
                total += declaration.batches_of(sum(map(len, chunks))) // max(1, world)
        return total

    def _rounds(self, chunks: Sequence[Chunk], epochs: range, world: int) -> int | None:
        none = np.empty(0, np.int64)
        cutting, openings = self._cutting, None
        if cutting.phased:
            drawn = (cutting.drawn(c.ordinals, e) for c, e in zip(chunks, epochs, strict=False))
            openings = np.concatenate([none, *drawn])
        steps = np.concatenate([none, *(chunk.columns["steps"] for chunk in chunks)])
        lanes = cutting.batch_size * max(1, world)
        return rounds(steps, cutting.geometry.cut, openings, lanes, cutting.small, cutting.most)

    @cached_property
    def _cutting(self) -> Cutting:
        return Cutting(self.declaration.shape, self.fields, 0)

    @cached_property
    def _numbered(self) -> IndexedSource | None:
        """The source, where it is read by number."""
        if isinstance(self.reader, IndexedSource):
            return self.reader
        return self.reader.by_number() if self.declaration.order.blocks else None

    @cached_property
    def _drops(self) -> bool:
        return not isinstance(self.steps, str) and bool((self.steps == DROPPED).any())

    # Steps

    @property
    def column(self) -> str:
        """The column that shows how long sequences are."""
        named = columns_by_name(self.declaration.shape.options["input_sequences"])
        return next(iter(named.values()))

    @cached_property
    def steps(self) -> np.ndarray | str:
        """The steps of each example, 0 for shapes that do not cut; or why nobody knows them."""
        declaration, reader = self.declaration, self._numbered
        if self.files and (stored := self.cache.find(*self.entry)) is not None:
            return stored
        if reason := declaration.recounted():
            return reason + self._hint
        if reader is None:
            return "only reading shows how many examples it has"
        if not declaration.segmented:
            return np.broadcast_to(np.int64(0), reader.length)
        whole = self.fields[self.column].shape[0]
        if whole is not None:
            return np.broadcast_to(np.int64(whole), reader.length)
        for stage in declaration.stages:
            if stage.kind not in _KEEP_STEPS:
                return f"{stage.kind} may change how long sequences are{self._hint}"
        steps = reader.steps_of(self.column)
        unknown = f"only reading shows how long its sequences are{self._hint}"
        return unknown if steps is None else steps

    @property
    def countable(self) -> bool:
        """Whether each epoch has the same steps, of files that show when they change."""
        stages = self.declaration.stages
        single = all(stage.kind in _MAY_DROP or stage.made().keeps_count for stage in stages)
        known = bool(self.files) and self._numbered is not None
        return known and single and not convertible(stages)[1]

    @property
    def _hint(self) -> str:
        if self.countable:
            return ": headrace check --count counts them once"
        named = self.declaration.source.kind == "indexed"
        return ": give from_indexed(lengths=)" if named else ""

    @property
    def entry(self) -> tuple[DataFile, str]:
        """The name of the stored steps: they are of these files, as these stages leave them."""
        shape = self.declaration.to_plain()["shape"] if self.declaration.segmented else None
        known = self.declaration.examples_digest(
            self.feed, [file.to_plain() for file in self.files], shape
        )
        return self.files[0], f"steps {known}"
