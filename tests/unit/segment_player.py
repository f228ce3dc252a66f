"""A partition of a feed of segments, played as a worker and its trainers play it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, name_of
from headrace_proto.layout import arrange, array_at, check_slot, strings_at
from headrace_server.core.dispatch_effects import Batch
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.making.partition_run import Busy, Resting, compose
from headrace_server.making.segment_block import write_strings
from headrace_server.making.slab import Slab
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.sources import open_reader
from tests.unit.readers import OPEN

PAGE = 4096


@dataclass(frozen=True, eq=False)
class Taken:
    """A batch as a trainer sees it: copies of its columns."""

    number: int
    columns: dict[str, np.ndarray]
    meta: dict[str, Any]

    def __len__(self) -> int:
        return len(self.columns["@key"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @property
    def rows(self) -> list[tuple[bytes, int, int]]:
        """Key, segment and count of segments of each row."""
        names = ("@key", "@sequence", "@sequence_count")
        return list(zip(*(self.columns[name].tolist() for name in names), strict=True))


class Player:
    """One worker's reader, bad records and slab, with one partition, whose trainers it plays."""

    def __init__(
        self, pipeline: Pipeline, directory: Path, slab_pages: int = 1024, parts: Any = (0, 1)
    ) -> None:
        declaration = pipeline.declaration()
        self.bad = BadRecords(declaration.policy.on_bad_example == "skip")
        source = declaration.source
        self.reader = open_reader(source, resolve(source.paths), self.bad, IndexCache(None))
        OPEN.append(self.reader)
        directory = directory / f"place{len(list(directory.iterdir()))}"
        directory.mkdir()
        self.slab = Slab(directory, 0, 0, slab_pages * PAGE, min(slab_pages, 64) * PAGE)
        self.feed = compose(self.reader, declaration, *parts, self.slab, self.bad)
        self.rested = 0  # batches after which it was known at once that nothing is to be done

    def want(self, stripe: int = 0) -> None:
        self.feed.commits.want(1, stripe)

    def step(self) -> Any:
        """The next thing that is not Busy."""
        while (result := self.feed.advance()) is Busy:
            pass
        if isinstance(result, Batch) and self.feed.rests:  # the owner asks no further then
            self.rested += 1
            assert self.feed.advance() is Resting
            assert not (
                self.feed.commits.starved
                or self.feed.commits.take_dry()
                or self.feed.machine.at_border
            )
        return result

    def take(self, stripe: int = 0) -> Any:
        """Ask for one more batch; return it, or the step that came instead."""
        self.want(stripe)
        return self.taken(self.step())

    def taken(self, made: Any) -> Any:
        """Return copies of a made batch's columns, and free its block."""
        if not isinstance(made, Batch):
            return made
        taken = Taken(made.number, self.decoded(made), dict(made.meta))
        assert len(taken) == made.rows
        self.slab.memory(made.body.block)[:] = 0xA5  # whoever writes the next batch finds this
        self.slab.free(made.body.block)
        return taken

    def decoded(self, made: Batch) -> dict[str, np.ndarray]:
        memory = self.slab.memory(made.body.block)
        assert len(memory) >= made.nbytes
        out = {}
        ends = 0
        for slot, (name, field) in zip(
            made.body.written.slots, self.feed.maker.schema.items(), strict=True
        ):
            check_slot(slot, made.nbytes)
            assert slot.dtype == field.dtype and field.admits(slot.shape), name
            ends += -(-slot.nbytes // 64) * 64
            out[name] = (strings_at if slot.dtype == BYTES else array_at)(memory, slot).copy()
        assert ends == made.nbytes, "no two columns share memory"
        return out

    def save(self, taken: Taken, states: Mapping[str, Any] | None = None) -> tuple[str, str]:
        """Save all states of a batch; return the partition's answer."""
        return self.feed.commits.saved(taken.number, *self.block(states or {}))

    def flush(self, number: int, rows: list[int], states: Mapping[str, Any]) -> None:
        self.feed.commits.flushed(number, rows, *self.block(states))

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
                write_strings(memory, slot, array.reshape(-1).tolist())
            else:
                array_at(memory, slot)[...] = array
        return memory.tobytes(), [[s.offset, s.nbytes, list(s.shape)] for s in slots]

    def play(
        self, states: Callable[[Taken], Mapping[str, Any]], stripe: int = 0
    ) -> tuple[list[Taken], Any]:
        """Train to the end as one trainer; return all batches, and the step after them."""
        batches = []
        while isinstance(taken := self.take(stripe), Taken):
            assert self.save(taken, states(taken)) == ("", "")
            batches.append(taken)
        return batches, taken


def same_states(taken: Taken) -> dict[str, np.ndarray]:
    """The states of a batch as they came: for tests that look at other things."""
    return {n[6:]: column for n, column in taken.columns.items() if n.startswith("state:")}


def no_states(taken: Taken) -> dict[str, np.ndarray]:
    """Return the states of a save where they stay with the trainer: none."""
    return {}
