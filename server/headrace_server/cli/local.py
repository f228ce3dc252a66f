"""One partition of a pipeline in this process: batches without a server.

    reader ─► Run ─► a slab of its own ─► Sample ─► committed at once

This does the work of a worker and plays the trainer's part, too: a batch is done when the next is
asked for, and states of segments come back as they were handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.layout import array_at, strings_at
from headrace_proto.schema import Field

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..leasing.words import ANYONE, Batch, Outlook, Slot
from ..making.slab import Slab
from ..partition.bucket_sample import with_boundaries
from ..partition.composition import compose
from ..pipeline.declaration import Declaration
from ..process.rundir import RunDirectory
from ..reading.chunk import BadRecords
from ..reading.source import StreamSource
from ..reading.sources import open_reader
from ..shaping.segments import Segments

_SLAB_BYTES: Final = 1 << 34  # taken as it is needed
#: Time between two looks at a source that had no example yet.
_SOURCE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch.  ``columns`` are views that hold until the next batch is asked for."""

    made: Batch
    seconds: float
    schema: Mapping[str, Field]
    columns: Mapping[str, np.ndarray]


class LocalFeed:
    """A context manager; the reader is closed and the shared memory let go after it."""

    def __init__(
        self,
        declaration: Declaration,
        files: tuple[DataFile, ...],
        bad: BadRecords,
        cache: IndexCache,
        partitions: int = 1,
        partition: int = 0,
    ) -> None:
        self._token = self._epoch = 0
        self._hidden = "-"  # begins the names of columns that are not known: no column's does
        self.reader: StreamSource = open_reader(declaration.source, files, bad, cache)
        self._directory = RunDirectory()
        try:
            self._slab = Slab(self._directory.path, 0, 0, _SLAB_BYTES)
            self.declaration = with_boundaries("", declaration, (), self.reader, bad, cache)
            self.run = compose(
                self.reader, self.declaration, partition, partitions, self._slab, bad
            )
        except BaseException:
            self.__exit__()
            raise

    def batches(self, first: int = 0, world: int = 0) -> Iterator[Sample]:
        """Yield the batches of the partition, of segments those of so many ranks; those before the
        ``first`` are passed over.

        A plain batch is passed over as one that an earlier process has committed: its rows are read
        and counted, and it is not assembled.  Nor are segments, so they have no states from then
        on.
        """
        run, machine = self.run, self.run.machine
        slot: Slot = b"here" if machine.lanes else ANYONE
        if world:
            run.deal(1, world)
            slot = 0
        if isinstance(machine, Segments):
            self._pass_over(machine, first, slot)
        else:
            for number in range(first):
                run.commit(Batch(run.number, number, ANYONE, (0, number), 0), 0, None)
        while True:
            began = time.monotonic()
            made = self._step(partial(run.make, slot))
            if isinstance(made, Outlook):
                assert made in (Outlook.IDLE, Outlook.ENDED), made  # all blocks are free
                return
            for batch in made:
                yield self._sample(batch, time.monotonic() - began)
                self._commit(batch)
                began = time.monotonic()

    def _step(self, step: Callable[[int], list[Batch] | Outlook]) -> list[Batch] | Outlook:
        """Take a step in this epoch, or the next one where it is over."""
        while (made := step(self._epoch)) in (Outlook.OVER, Outlook.WAITS):
            if made is Outlook.OVER:
                self._epoch += 1
            else:
                time.sleep(_SOURCE_S)
        return made

    def _pass_over(self, machine: Segments, first: int, slot: Slot) -> None:
        passed = 0
        while passed < first:
            if isinstance(self._step(partial(self.run.draft, slot)), Outlook):
                break
            while passed < first and machine.unwritten:
                self._token += 1
                machine.commit(machine.unwritten.popleft().batch, self._token)
                passed += 1
        self._hidden = "state:" if passed else "-"

    def _sample(self, made: Batch, seconds: float) -> Sample:
        block = self._slab.memory(made.body.block)
        schema = self.run.schema
        columns = {
            name: strings_at(block, slot) if slot.dtype == BYTES else array_at(block, slot)
            for name, slot in zip(schema, made.body.slots, strict=True)
            if not name.startswith(self._hidden)
        }
        return Sample(made, seconds, schema, columns)

    def _commit(self, made: Batch) -> None:
        payload = None
        if self.declaration.segmented:
            states, block = [], b""
            if self.declaration.shape.options["state_placement"] == "server":
                block = self._slab.memory(made.body.block).tobytes()
                states = [
                    (slot.offset, slot.nbytes, slot.shape)
                    for name, slot in zip(self.run.schema, made.body.slots, strict=True)
                    if name.startswith("state:")
                ]
            payload = states, block
        self._token += 1
        if fault := self.run.commit(made, self._token, payload):
            raise AssertionError(fault)
        self._slab.free(made.body.block)

    def __enter__(self) -> LocalFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self._directory.close()
