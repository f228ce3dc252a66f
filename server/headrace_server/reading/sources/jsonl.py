"""One JSON object per line.

    plain         IndexedReader: where lines begin and end is scanned once and kept
    compressed    StreamReader (.gz): one stream per file

Lines of white space are no records.  A value of null is a missing one.  Without declared features
the first records show the columns: a list whose length differs among them varies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from headrace_proto.errors import DataError
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile, open_map
from headrace_server.pipeline.declaration import Source
from headrace_server.reading.chunk import Origin
from headrace_server.reading.reader import BadRecords, Reader

from .inference import PROBED
from .parts import Kept, PartsReader, Rows, empty_columns
from .rows import Layout, layout_of
from .streams import DAMAGE, FileStreams, Place, Record, damage_text, open_plain

__all__ = ["line_index", "open_reader"]

_NEWLINE = 10
_SPACE = 32
_MARK = b"\xef\xbb\xbf"  # of UTF-8, where an editor has put one
#: Bytes that are scanned for newlines at once.
_BLOCK = 1 << 24


def open_reader(
    source: Source, files: tuple[DataFile, ...], bad: BadRecords, cache: IndexCache
) -> Reader:
    if any(file.path.endswith(".gz") for file in files):
        return FileStreams(files, _Lines, source.features, bad)
    parts = [_LinePart(file, cache, bad) for file in files]
    layout = layout_of(source.features, partial(_probe, parts))
    for part in parts:
        part.layout = layout
    return PartsReader(layout.fields, parts)


def parsed(line: bytes) -> Mapping[str, Any]:
    """The object of a line; ValueError for anything else."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"the line is not UTF-8: {error}") from None
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the line is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"the line holds {line!r:.60}, which is no JSON object")
    return value


def line_index(
    data: np.ndarray, told: Callable[[int], None] = lambda done: None
) -> dict[str, np.ndarray]:
    """``starts`` and ``stops`` of the lines that hold more than white space.

    ``told`` is how many bytes were gone through, now and then.
    """
    starts, stops = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    at = len(_MARK) if data[:3].tobytes() == _MARK else 0
    for stop in _blocks(data, at):
        block = data[at:stop]
        ends = np.flatnonzero(block == _NEWLINE)
        if not len(ends) or ends[-1] != len(block) - 1:
            ends = np.append(ends, len(block))
        begins = np.concatenate([[0], ends[:-1] + 1])
        # An empty line is its own newline, which is no ink.
        inked = np.logical_or.reduceat(block > _SPACE, begins)
        starts.append(begins[inked] + at)
        stops.append(ends[inked] + at)
        at = stop
        told(at)
    return {"starts": np.concatenate(starts), "stops": np.concatenate(stops)}


def _blocks(data: np.ndarray, at: int) -> Iterator[int]:
    """Where blocks of whole lines end."""
    while at < data.size:
        size = _BLOCK
        while True:
            stop = min(at + size, data.size)
            ends = np.flatnonzero(data[max(at, stop - _BLOCK) : stop] == _NEWLINE)
            if stop == data.size or len(ends):
                break
            size += _BLOCK
        at = stop if stop == data.size else max(at, stop - _BLOCK) + int(ends[-1]) + 1
        yield at


class _LinePart:
    """The lines of one file."""

    layout: Layout  # set when the probe is done

    def __init__(self, file: DataFile, cache: IndexCache, bad: BadRecords) -> None:
        self._file, self._bad = file, bad
        self._data = open_map(file)
        index = cache.get(file, "jsonl-lines", lambda: line_index(self._data, cache.told(file)))
        self._starts, self._stops = index["starts"], index["stops"]
        self.rows = len(self._starts)

    def line(self, number: int) -> bytes:
        return self._data[int(self._starts[number]) : int(self._stops[number])].tobytes()

    def read(self, rows: Rows) -> Kept:
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        origin = Origin.single(self._file.path, numbers, self._starts[numbers])
        found: list[Mapping[str, Any]] = []
        which: list[int] = []
        for i, number in enumerate(numbers.tolist()):
            try:
                found.append(parsed(self.line(number)))
                which.append(i)
            except ValueError as error:
                self._bad.report(DataError(f"{origin.describe(i)}: {error}"), "corrupt_record")
        sound = np.array(which, np.int64)
        if not found:
            return Kept(empty_columns(self.layout.fields), origin.take(sound), sound)
        chunk, kept = self.layout.chunk(found, numbers[sound], origin.take(sound), self._bad)
        if kept is None and len(found) == len(numbers):
            return Kept(chunk.columns, chunk.origin)
        return Kept(chunk.columns, chunk.origin, sound if kept is None else sound[kept])

    def close(self) -> None:
        self._data = np.empty(0, np.uint8)


def _probe(parts: list[_LinePart]) -> list[Mapping[str, Any]]:
    """The first sound records.  Others are reported when they are read."""
    rows: list[Mapping[str, Any]] = []
    wrong: ValueError | None = None
    for part in parts:
        for number in range(part.rows):
            if len(rows) == PROBED:
                return rows
            try:
                rows.append(parsed(part.line(number)))
            except ValueError as error:
                wrong = wrong or error
    if wrong is not None and not rows:
        raise DataError(f"{wrong}; no record shows the columns: declare the features")
    return rows


class _Lines:
    """A walk over the lines of a file that is compressed."""

    def __init__(self, file: DataFile, place: Place) -> None:
        self.place = place
        self._stream: BinaryIO | None = None
        self._file = file

    def next(self) -> Record | None:
        place = self.place
        try:
            if self._stream is None:
                self._stream = open_plain(self._file, place.byte)
            while True:
                line = self._stream.readline()
                here, place = place, Place(place.byte + len(line), place.record + 1)
                if not line:
                    return None
                if here.byte == 0:
                    line = line.removeprefix(_MARK)
                if line.strip():
                    break
                place = Place(place.byte, here.record)
        except DAMAGE as error:
            text, reason = damage_text(error)
            return Record(self.place, None, text, reason, ends=True)
        self.place = place
        try:
            return Record(here, parsed(line))
        except ValueError as error:
            return Record(here, None, str(error))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
