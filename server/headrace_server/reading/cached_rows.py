"""The rows of a cache that is complete: found by the ordinal of the example that they come from.

    ordinals ─► starts.npy: where its rows stand in ─► order.npy: rows of ─► part-….arrow, mapped
       └─ of streams first the place in examples.npy

An example that the stages dropped has no row, and one that they unfolded has several.  bad.npy
lists unreadable examples of a reader by number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace_proto.schema import Field, schema_from_wire

from ..files.durable_file import put_in_place, write_durably
from .chunk import Chunk, Origin
from .reader import ORDINAL_BITS, IndexedReader
from .sources import open_arrow
from .stretches import ranges

#: The file that is written last: a cache without it is not used.
COMPLETE: Final = "complete.json"
#: Columns beside those of the example: its ordinal, and its origin.
OWN_FIELDS: Final = {
    "@ordinal": Field("int64"),
    "@file": Field("int32"),
    "@record": Field("int64"),
    "@offset": Field("int64"),
}

_RECORD: Final = (1 << ORDINAL_BITS) - 1
_NONE: Final = np.empty(0, np.int64)


def notes_in(directory: Path) -> list[str]:
    """Return the names of the finished parts, in order."""
    return sorted(path.name.removesuffix(".json") for path in directory.glob("part-*.json"))


def note_of(directory: Path, name: str) -> dict[str, Any]:
    """Return the notes of a part: its rows, and the files from which they come."""
    note: dict[str, Any] = json.loads((directory / f"{name}.json").read_text())
    return note


class Covered:
    """The examples that parts of a cache have, by stream; ``counts``: number of all examples."""

    def __init__(self, counts: Sequence[int | None]) -> None:
        self.counts = list(counts)
        self._has = [np.zeros(count or 0, bool) for count in counts]
        self._found = [0] * len(self.counts)

    def lacks(self, ordinals: np.ndarray) -> np.ndarray:
        """Return a mask of the examples that no part has."""
        lacking = np.ones(len(ordinals), bool)
        for stream, places in self._by_stream(ordinals):
            records, has = ordinals[places] & _RECORD, self._has[stream]
            known = records < len(has)
            lacking[places[known]] = ~has[records[known]]
        return lacking

    def add(self, ordinals: np.ndarray) -> None:
        for stream, places in self._by_stream(ordinals):
            records, has = ordinals[places] & _RECORD, self._has[stream]
            if (most := int(records.max())) >= len(has):
                has = np.concatenate([has, np.zeros(max(most + 1 - len(has), len(has)), bool)])
                self._has[stream] = has
            self._found[stream] += int(np.count_nonzero(~has[records]))
            has[records] = True

    def _by_stream(self, ordinals: np.ndarray) -> list[tuple[int, np.ndarray]]:
        streams = ordinals >> ORDINAL_BITS
        return [(int(one), np.flatnonzero(streams == one)) for one in np.unique(streams)]

    def add_part(self, directory: Path, name: str) -> None:
        """Add a finished part."""
        self.add(np.load(directory / f"{name}.asked.npy"))
        for stream, count in note_of(directory, name).get("ends", ()):
            self.counts[stream] = count

    @property
    def whole(self) -> bool:
        """Whether no example is missing."""
        return self.counts == self._found

    @property
    def examples(self) -> np.ndarray:
        """The ordinals of all examples, in order."""
        found = [np.flatnonzero(has) | (i << ORDINAL_BITS) for i, has in enumerate(self._has)]
        return np.concatenate(found)


def complete(directory: Path, counts: Sequence[int | None], progress: Callable[[], None]) -> bool:
    """Write the index and the mark of a cache whose parts hold all examples; False where some are
    missing.  Rows that two parts have count once.  ``progress`` is called after each step."""
    names = notes_in(directory)
    seen = Covered(counts)
    used, listed, keeps = [], [], []
    for name in names:
        sources = np.load(directory / f"{name}.rows.npy")
        if len(sources):
            used.append(name)
            listed.append(sources)
            keeps.append(seen.lacks(sources))
        seen.add_part(directory, name)
        progress()
    if not names or not seen.whole:
        return False
    examples = seen.examples
    every = np.searchsorted(examples, np.concatenate([_NONE, *listed]))
    progress()
    kept = np.flatnonzero(np.concatenate([np.empty(0, bool), *keeps]))
    by_source = np.argsort(every[kept], kind="stable")
    starts = np.searchsorted(every[kept][by_source], np.arange(len(examples) + 1))
    bad = [directory / f"{name}.bad.npy" for name in names]
    arrays = {
        "order": kept[by_source],
        "starts": starts,
        "bad": np.unique(np.concatenate([_NONE, *(np.load(f) for f in bad if f.exists())])),
    }
    if len(examples) and examples[-1] >= len(examples):
        arrays["examples"] = examples
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy.part", array)
        (directory / f"{name}.npy.part.npy").rename(directory / f"{name}.npy.part")
        put_in_place(directory / f"{name}.npy.part", directory / f"{name}.npy")
        progress()
    fields = max((note_of(directory, name)["fields"] for name in names), key=len)
    mark = {"parts": used, "fields": fields, "rows": len(kept), "length": len(examples)}
    write_durably(directory / COMPLETE, json.dumps(mark))
    for path in directory.glob("part-*"):
        if path.name.partition(".")[0] not in names:  # an unfinished part
            path.unlink(missing_ok=True)
    return True


class CachedRows:
    """A complete cache, open for reading."""

    def __init__(self, directory: Path) -> None:
        mark = json.loads((directory / COMPLETE).read_text())
        self.fields = schema_from_wire(mark["fields"])
        self._order = np.load(directory / "order.npy", mmap_mode="r")
        self._starts = np.load(directory / "starts.npy", mmap_mode="r")
        self._bad, self._examples = (
            np.load(file, mmap_mode="r") if file.exists() else None
            for file in (directory / "bad.npy", directory / "examples.npy")
        )
        self._length = int(mark["length"])
        self._reader: IndexedReader | None = None
        notes = [note_of(directory, name) for name in mark["parts"]]
        self._files = tuple(file for note in notes for file in note["files"])
        self._bases = np.cumsum([0, *(len(note["files"]) for note in notes)])
        self._bounds = np.cumsum([0, *(note["rows"] for note in notes)])
        if notes:
            paths = (str(directory / f"{name}.arrow") for name in mark["parts"])
            self._reader = open_arrow(*paths)

    def good(self, ordinals: np.ndarray) -> np.ndarray:
        """Return these examples without unreadable ones."""
        if self._bad is None or not len(self._bad):
            return ordinals
        return ordinals[~np.isin(ordinals, self._bad)]

    def stream(self, stream: int, first: int, count: int) -> tuple[np.ndarray, bool]:
        """Return the record numbers of ``count`` examples of a stream, and whether more follow."""
        if self._examples is None:
            end = 0 if stream else self._length
            return np.arange(first, min(first + count, end)), first + count < end
        low, end = np.searchsorted(self._examples, np.arange(stream, stream + 2) << ORDINAL_BITS)
        found = self._examples[low + first : min(low + first + count, end)]
        return found & _RECORD, low + first + count < end

    def take(self, ordinals: np.ndarray) -> Chunk:
        """Return the rows of these examples, in their order."""
        if self._examples is not None:
            ordinals = np.searchsorted(self._examples, ordinals)
        starts = self._starts[ordinals]
        rows = self._order[ranges(starts, self._starts[ordinals + 1] - starts)]
        if self._reader is None or not len(rows):
            return Chunk.empty({})
        first, last = int(rows[0]), int(rows[-1])
        in_order = last - first + 1 == len(rows) and (np.diff(rows) == 1).all()
        found = self._reader.take(slice(first, last + 1) if in_order else rows)
        own = {name: np.asarray(found.columns[name]) for name in OWN_FIELDS}
        part = np.searchsorted(self._bounds, rows, side="right") - 1
        file = (own["@file"] + self._bases[part]).astype(np.int32)
        offset = own["@offset"]
        origin = Origin(self._files, file, own["@record"], None if (offset < 0).any() else offset)
        columns = {name: found.columns[name] for name in self.fields}
        return Chunk(columns, own["@ordinal"], origin)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
