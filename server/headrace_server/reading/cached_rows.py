"""The rows of a cache that is complete: found by the ordinal of the example that they come from.

    ordinals ─► starts: where its rows stand in ─► order: rows of ─► part-….arrow, mapped
       └─ of streams first the place among the examples

An example that the stages dropped has no row, and one that they unfolded has several.  The file
index.npy holds these lists, and the unreadable examples of a reader by number.

All files have checksums.  Those of the index are verified when the cache is opened, and each record
batch when the first of its rows is read.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field, schema_from_wire

from ..files.checksums import bytes_of, sealed, sums_of, unsealed, verify
from ..files.durable_file import put_in_place, write_durably
from ..files.manifest import resolve
from ..files.mapped_files import MappedFiles
from .buffer_ranges import ranges
from .chunk import Chunk, Origin
from .reader import ORDINAL_BITS, IndexedReader
from .sources import open_arrow

if TYPE_CHECKING:
    from .arrow_part import ArrowPart

logger = logging.getLogger("headrace.data")

#: The file that is written last: a cache without it is not used.
COMPLETE: Final = "complete.json"
INDEX: Final = "index.npy"
#: Columns beside those of the example: its ordinal, and its origin.
OWN_FIELDS: Final = {
    "@ordinal": Field("int64"),
    "@file": Field("int32"),
    "@record": Field("int64"),
    "@offset": Field("int64"),
}

#: An Arrow file begins so: a magic, and the length of the schema's message that follows.
_HEAD: Final = struct.Struct("<12xi")
_RECORD: Final = (1 << ORDINAL_BITS) - 1
NO_NUMBERS: Final = np.empty(0, np.int64)


def notes_in(directory: Path) -> list[str]:
    """Return the names of the finished parts, in order."""
    return sorted(path.name.removesuffix(".json") for path in directory.glob("part-*.json"))


def note_of(directory: Path, name: str) -> dict[str, Any]:
    """Return the notes of a part: its rows, and the files from which they come."""
    return unsealed(directory / f"{name}.json")


def noted(part: ArrowPart) -> dict[str, Any]:
    """Return the notes of a part's file: its record batches, and the checksums of its stretches."""
    data = bytes_of(part.path)
    head = _HEAD.size + _HEAD.unpack_from(data.data)[0]
    bounds = [0, head, *(end for _, end in part.batches), len(data)]
    batches = [rows for rows, _ in part.batches]
    sums = sums_of(data, bounds)
    return {"rows": part.rows, "batches": batches, "bounds": bounds, "sums": sums}


@contextmanager
def naming_damage(directory: Path) -> Iterator[None]:
    """Raise what is found wrong with a cache as a DataError that says what to do."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, (DataError, ValueError)) else repr(error)
        raise DataError(
            f"the cache {directory} is damaged: {what:.300}.  Remove that directory: "
            "the next epoch writes it anew"
        ) from error


def saved(file: Path, *lists: np.ndarray) -> dict[str, Any]:
    """Write lists of integers to a file; return what ``loaded`` needs."""
    part = file.with_name(f"{file.name}.part")
    with open(part, "wb") as stream:
        np.save(stream, np.concatenate(lists))
    put_in_place(part, file)
    return {"sizes": [len(one) for one in lists], "sums": sums_of(bytes_of(file))}


def loaded(file: Path, note: dict[str, Any]) -> list[np.ndarray]:
    """Return such lists, mapped, after a check of their file."""
    verify(file.name, bytes_of(file), note["sums"])
    return np.split(np.load(file, mmap_mode="r"), np.cumsum(note["sizes"])[:-1])


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
        note = note_of(directory, name)
        self.add(loaded(directory / f"{name}.npy", note["lists"])[0])
        for stream, count in note["ends"]:
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
    used, listed, keeps, bad = [], [], [], [NO_NUMBERS]
    for name in names:
        _, sources, unread = loaded(directory / f"{name}.npy", note_of(directory, name)["lists"])
        bad.append(unread)
        if len(sources):
            used.append(name)
            listed.append(sources)
            keeps.append(seen.lacks(sources))
        seen.add_part(directory, name)
        progress()
    if not names or not seen.whole:
        return False
    examples = seen.examples
    every = np.searchsorted(examples, np.concatenate([NO_NUMBERS, *listed]))
    progress()
    kept = np.flatnonzero(np.concatenate([np.empty(0, bool), *keeps]))
    by_source = np.argsort(every[kept], kind="stable")
    starts = np.searchsorted(every[kept][by_source], np.arange(len(examples) + 1))
    progress()
    numbered = not len(examples) or examples[-1] < len(examples)
    of_examples = NO_NUMBERS if numbered else examples
    unreadable = np.unique(np.concatenate(bad))
    index = saved(directory / INDEX, kept[by_source], starts, unreadable, of_examples)
    progress()
    fields = max((note_of(directory, name)["fields"] for name in names), key=len)
    mark = {"parts": used, "fields": fields, "index": index, "length": len(examples)}
    write_durably(directory / COMPLETE, sealed(mark))
    for path in directory.glob("part-*"):
        if path.name.partition(".")[0] not in names:  # an unfinished part
            path.unlink(missing_ok=True)
    logger.info("the cache %s is complete", directory)
    return True


class CachedRows:
    """A complete cache, open for reading."""

    def __init__(self, directory: Path, progress: Callable[[], None] = lambda: None) -> None:
        """``progress`` is called when a record batch was verified, which may take long."""
        mark = unsealed(directory / COMPLETE)
        self.fields = schema_from_wire(mark["fields"])
        index = loaded(directory / INDEX, mark["index"])
        #: Rows by example, and where those of each begin; bad examples; the ordinals of all, or
        #: none where they are the numbers from 0 on.
        self._order, self._starts, self._bad, self._examples = index
        self._length = int(mark["length"])
        self._directory, self._progress = directory, progress
        self._reader: IndexedReader | None = None
        paths = [str(directory / f"{name}.arrow") for name in mark["parts"]]
        self._maps = MappedFiles(resolve(paths))
        self._notes = [note_of(directory, name) for name in mark["parts"]]
        self._files = tuple(file for note in self._notes for file in note["files"])
        self._bases = np.cumsum([0, *(len(note["files"]) for note in self._notes)])
        batches = [len(note["batches"]) for note in self._notes]
        self._part_of = np.repeat(np.arange(len(batches)), batches)  # by batch
        self._first_of = np.cumsum([0, *batches])  # batch, by part
        self._ends = np.cumsum([rows for note in self._notes for rows in note["batches"]])
        self._unverified = np.ones(len(self._ends), bool)
        for part, count in enumerate(batches):
            self._verify(part, 0)  # the schema
            self._verify(part, count + 1)  # where the batches are
        if paths:
            self._reader = open_arrow(*paths)

    def _verify(self, part: int, stretch: int) -> None:
        note, name = self._notes[part], Path(self._maps.files[part].path).name
        bounds, sums = note["bounds"][stretch : stretch + 2], note["sums"][stretch : stretch + 1]
        verify(name, self._maps.file_data(part), sums, bounds)
        self._progress()

    def good(self, ordinals: np.ndarray) -> np.ndarray:
        """Return these examples without unreadable ones."""
        if not len(self._bad):
            return ordinals
        return ordinals[~np.isin(ordinals, self._bad)]

    def stream(self, stream: int, first: int, count: int) -> tuple[np.ndarray, bool]:
        """Return the record numbers of ``count`` examples of a stream, and whether more follow."""
        if not len(self._examples):
            end = 0 if stream else self._length
            return np.arange(first, min(first + count, end)), first + count < end
        low, end = np.searchsorted(self._examples, np.arange(stream, stream + 2) << ORDINAL_BITS)
        found = self._examples[low + first : min(low + first + count, end)]
        return found & _RECORD, low + first + count < end

    def take(self, ordinals: np.ndarray) -> Chunk:
        """Return the rows of these examples, in their order."""
        if len(self._examples):
            ordinals = np.searchsorted(self._examples, ordinals)
        starts = self._starts[ordinals]
        rows = self._order[ranges(starts, self._starts[ordinals + 1] - starts)]
        if self._reader is None or not len(rows):
            return Chunk.empty({})
        batch = np.searchsorted(self._ends, rows, side="right")
        part = self._part_of[batch]
        if (unverified := self._unverified[batch]).any():
            with naming_damage(self._directory):
                for one in np.unique(batch[unverified]):
                    of = int(self._part_of[one])
                    self._verify(of, 1 + int(one - self._first_of[of]))
                    self._unverified[one] = False
        first, last = int(rows[0]), int(rows[-1])
        in_order = last - first + 1 == len(rows) and (np.diff(rows) == 1).all()
        found = self._reader.take(slice(first, last + 1) if in_order else rows)
        own = {name: np.asarray(found.columns[name]) for name in OWN_FIELDS}
        file = (own["@file"] + self._bases[part]).astype(np.int32)
        offset = own["@offset"]
        origin = Origin(self._files, file, own["@record"], None if (offset < 0).any() else offset)
        columns = {name: found.columns[name] for name in self.fields}
        return Chunk(columns, own["@ordinal"], origin)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
