"""The rows of a cache that is complete: found by the number of the example that they come from.

    ordinals ─► starts.npy: where its rows stand in ─► order.npy: rows of ─► part-….arrow, mapped

An example that the stages dropped has no row, and one that they unfolded has several.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from headrace_proto.schema import Field, schema_from_wire

from ..files.durable_file import put_in_place, write_durably
from ..files.index_cache import IndexCache
from ..files.manifest import resolve
from ..pipeline.declaration import Source
from .chunk import Chunk, Origin
from .reader import BadRecords, IndexedReader
from .sources import open_reader
from .stretches import ranges

__all__ = ["COMPLETE", "OWN_FIELDS", "CachedRows", "complete", "note_of", "notes_in"]

#: The file that is written last: a cache without it is not used.
COMPLETE: Final = "complete.json"
#: Columns beside those of the example: its ordinal, and its origin.
OWN_FIELDS: Final = {
    "@ordinal": Field("int64"),
    "@file": Field("int32"),
    "@record": Field("int64"),
    "@offset": Field("int64"),
}


def notes_in(directory: Path) -> list[str]:
    """The names of the parts that are finished, in order."""
    return sorted(path.name.removesuffix(".json") for path in directory.glob("part-*.json"))


def note_of(directory: Path, name: str) -> dict[str, Any]:
    """The notes of a part: its rows, and the files that they come from."""
    note: dict[str, Any] = json.loads((directory / f"{name}.json").read_text())
    return note


def complete(directory: Path, length: int) -> bool:
    """Write the index and the mark of a cache whose parts hold all examples; False where some are
    missing.  Rows that two parts have count once."""
    names = notes_in(directory)
    seen = np.zeros(length, bool)
    used, listed, keeps = [], [], []
    for name in names:
        asked = np.load(directory / f"{name}.asked.npy")
        sources = np.load(directory / f"{name}.rows.npy")
        if len(sources):
            used.append(name)
            listed.append(sources)
            keeps.append(~seen[sources])
        seen[asked] = True
    if not names or not seen.all():
        return False
    fields = note_of(directory, names[0])["fields"]
    every = np.concatenate(listed) if listed else np.empty(0, np.int64)
    kept = np.flatnonzero(np.concatenate(keeps)) if keeps else np.empty(0, np.int64)
    by_source = np.argsort(every[kept], kind="stable")
    starts = np.searchsorted(every[kept][by_source], np.arange(length + 1))
    for name, array in (("order", kept[by_source]), ("starts", starts)):
        np.save(directory / f"{name}.npy.part", array)
        (directory / f"{name}.npy.part.npy").rename(directory / f"{name}.npy.part")
        put_in_place(directory / f"{name}.npy.part", directory / f"{name}.npy")
    mark = {"parts": used, "fields": fields, "rows": len(kept), "length": length}
    write_durably(directory / COMPLETE, json.dumps(mark))
    for path in directory.glob("part-*"):
        if path.name.partition(".")[0] not in names:  # a part that was never finished
            path.unlink(missing_ok=True)
    return True


class CachedRows:
    """A complete cache, open for reading."""

    def __init__(self, directory: Path) -> None:
        mark = json.loads((directory / COMPLETE).read_text())
        self.fields = schema_from_wire(mark["fields"])
        self._order = np.load(directory / "order.npy", mmap_mode="r")
        self._starts = np.load(directory / "starts.npy", mmap_mode="r")
        self._reader: IndexedReader | None = None
        notes = [note_of(directory, name) for name in mark["parts"]]
        self._files = tuple(file for note in notes for file in note["files"])
        self._bases = np.cumsum([0, *(len(note["files"]) for note in notes)])
        self._bounds = np.cumsum([0, *(note["rows"] for note in notes)])
        if notes:
            paths = [str(directory / f"{name}.arrow") for name in mark["parts"]]
            files, source = resolve(paths), Source("arrow", tuple(paths))
            reader = open_reader(source, files, BadRecords(), IndexCache(None))
            assert isinstance(reader, IndexedReader)
            self._reader = reader

    def take(self, ordinals: np.ndarray) -> Chunk:
        """The rows of these examples, in their order."""
        starts = self._starts[ordinals]
        rows = self._order[ranges(starts, self._starts[ordinals + 1] - starts)]
        if self._reader is None or not len(rows):
            none = np.empty(0, np.int64)
            return Chunk({}, none, Origin.single("", none))
        first, last = int(rows[0]), int(rows[-1])
        in_order = last - first + 1 == len(rows) and (np.diff(rows) == 1).all()
        found = self._reader.slice(first, last + 1) if in_order else self._reader.take(rows)
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
