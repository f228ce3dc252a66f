"""A partition of a feed of segments, played as its desk and its trainers play it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, name_of
from headrace_proto.layout import arrange, array_at, check_place, strings_at
from headrace_server.leasing.words import ANYONE, Batch, Outlook, Slot
from headrace_server.making.segment_block import packed_strings
from headrace_server.making.slab import Slab
from headrace_server.partition.composition import compose
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.chunk import BadRecords
from tests.unit.readers import opened_source

PAGE = 4096
#: The slot of a trainer with lanes.
ME = b"me"


@dataclass(frozen=True, eq=False)
class Taken:
    """A batch as a trainer sees it: copies of its columns."""

    batch: Batch
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["@key"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def number(self) -> int:
        return self.batch.number

    @property
    def rows(self) -> list[tuple[bytes, int, int]]:
        """Key, segment and count of segments of each row."""
        names = ("@key", "@sequence", "@sequence_count")
        return list(zip(*(self.columns[name].tolist() for name in names), strict=True))


class Place:
    """One worker's reader, bad records and slab."""

    def __init__(self, pipeline: Pipeline, directory: Path, slab_pages: int = 1024) -> None:
        self.declaration = pipeline.declaration()
        self.bad = BadRecords(self.declaration.policy.on_bad_example == "skip")
        self.reader = opened_source(self.declaration.source, self.bad)
        directory = directory / f"place{len(list(directory.iterdir()))}"
        directory.mkdir()
        self.slab = Slab(directory, 0, 0, slab_pages * PAGE, min(slab_pages, 64) * PAGE)

    def begin(self, partition: int = 0, partitions: int = 1) -> Any:
        """Return a partition of the feed."""
        if partition:
            self.bad.counts.clear()  # as a worker does
        return compose(self.reader, self.declaration, partition, partitions, self.slab, self.bad)


class Player(Place):
    """A worker with one partition, whose trainers it plays."""

    def __init__(
        self, pipeline: Pipeline, directory: Path, slab_pages: int = 1024, parts: Any = (0, 1)
    ) -> None:
        super().__init__(pipeline, directory, slab_pages)
        self.feed = self.begin(*parts)
        self.me: Slot = ME if self.feed.machine.lanes else ANYONE
        self.waiting: list[Batch] = []  # made for other slots
        self.tokens = itertools.count(1)
        self.most = 1  # batches of a step …
        self.together = 0  # … and how many came with another

    def step(self, slot: Slot | None = None, epoch: int = 0) -> Batch | Outlook:
        """A batch for a slot, or why there is none."""
        slot = self.me if slot is None else slot
        while True:
            mine = [batch for batch in self.waiting if batch.slot == slot]
            if mine:
                self.waiting.remove(first := min(mine, key=lambda batch: batch.turn))
                return first
            made = self.feed.make(slot, epoch, most=self.most)
            if isinstance(made, Outlook):
                return made
            self.together += len(made[1:])
            self.waiting += made

    def take(self, slot: Slot | None = None, epoch: int = 0) -> Any:
        """Ask for one more batch; return it, or the outlook that came instead."""
        return self.taken(self.step(slot, epoch))

    def taken(self, made: Any) -> Any:
        """Return copies of a made batch's columns, and free its block."""
        if not isinstance(made, Batch):
            return made
        taken = Taken(made, self.decoded(made))
        assert len(taken) == made.rows
        self.slab.memory(made.body.block)[:] = 0xA5  # whoever writes the next batch finds this
        self.slab.free(made.body.block)
        return taken

    def decoded(self, made: Batch) -> dict[str, np.ndarray]:
        memory = self.slab.memory(made.body.block)
        assert len(memory) >= made.nbytes
        out = {}
        ends = 0
        for slot, (name, field) in zip(made.body.slots, self.feed.schema.items(), strict=True):
            check_place(slot, made.nbytes)
            assert slot.dtype == field.dtype and field.admits(slot.shape), name
            ends += -(-slot.nbytes // 64) * 64
            out[name] = (strings_at if slot.dtype == BYTES else array_at)(memory, slot).copy()
        assert ends == made.nbytes, "no two columns share memory"
        return out

    def save(self, taken: Taken, states: Mapping[str, Any] | None = None) -> tuple[str, str] | None:
        """Save all states of a batch; return the partition's fault."""
        block, columns = self.block(states or {})
        payload = (columns, block) if columns else None
        return self.feed.commit(taken.batch, next(self.tokens), payload)

    def flush(self, taken: Taken, rows: list[int], states: Mapping[str, Any]) -> None:
        block, columns = self.block(states)
        self.feed.keep(taken.batch, rows, columns, block)

    def order(self, kind: str, what: Any) -> Any:
        """Give an order that is stored at once."""
        order = self.feed.propose((kind, what))
        self.feed.apply(order)
        return order

    def block(self, states: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
        """States as a trainer sends them."""
        arrays = [np.asarray(states[name]) for name in sorted(states)]
        specs = [
            (name_of(a.dtype), a.shape, sum(map(len, a.reshape(-1))) if a.dtype == object else 0)
            for a in arrays
        ]
        slots, nbytes = arrange(specs)
        memory = np.full(nbytes, 0x5A, np.uint8)
        for slot, array in zip(slots, arrays, strict=True):
            if slot.dtype == BYTES:
                packed = packed_strings(array.reshape(-1).tolist())
                memory[slot.offset : slot.offset + slot.nbytes].data[:] = packed
            else:
                array_at(memory, slot)[...] = array
        return memory.tobytes(), [[s.offset, s.nbytes, list(s.shape)] for s in slots]

    def play(
        self, states: Callable[[Taken], Mapping[str, Any]], slot: Slot | None = None
    ) -> tuple[list[Taken], Any]:
        """Train to the end as one trainer; return all batches, and the outlook after them."""
        batches, epoch = [], 0
        while (taken := self.take(slot, epoch)) is not Outlook.ENDED:
            if taken is Outlook.OVER:
                epoch += 1
                continue
            if not isinstance(taken, Taken):
                break
            assert self.save(taken, states(taken)) is None
            batches.append(taken)
        return batches, taken


def same_states(taken: Taken) -> dict[str, np.ndarray]:
    """The states of a batch as they came: for tests that look at other things."""
    return {n[6:]: column for n, column in taken.columns.items() if n.startswith("state:")}


def no_states(taken: Taken) -> dict[str, np.ndarray]:
    """Return the states of a save where they stay with the trainer: none."""
    return {}
