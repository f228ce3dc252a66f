"""One JSON object per line.

    plain         IndexedSource: where lines begin and end is scanned once and kept
    compressed    StreamSource (.gz): one stream per file

Lines of white space are no records, but count in errors, which name lines.  null is a missing
value.  Without declared features the first records show the columns: a list with different lengths
among them varies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from ...files.index_cache import IndexCache, some_of
from ...files.manifest import DataFile, is_remote
from ...files.mapped_files import mapped
from ..chunk import LINE, BadRecords
from ..example_rows import FilePart, Place, Record, Records, Row, file_streams, reader_of_rows
from ..forward_files import MARK, MOST_LINE, Lines, compression_of, open_forward
from ..source import Opening, Source, StreamSource

_NEWLINE = 10
#: By byte whether it is more than white space.  Zeros count: a crash of the writer leaves them.
_INK = np.array([not bytes([byte]).isspace() for byte in range(256)])
#: Bytes that are scanned for newlines at once.
_BLOCK = 1 << 24


class Jsonl(Source):
    """Lines of files: by number, or forward where a file is compressed."""

    @classmethod
    def open(cls, opening: Opening) -> StreamSource:
        files, features = opening.files, opening.features
        if any(compression_of(file.path) for file in files):
            return file_streams(opening, _lines, features, LINE)
        return reader_of_rows([_part(file, opening.cache, opening.bad) for file in files], features)


def parsed(line: bytes | memoryview) -> Row:
    """Return the object of a line; ValueError for anything else."""
    if len(line) > MOST_LINE:
        raise ValueError(f"the line has more than {MOST_LINE} bytes")
    try:
        value = json.loads(str(line, "utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"the line is no JSON: {error.msg}, column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, a number of too many digits …
        raise ValueError(f"the line is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"the line holds {bytes(line)!r:.60}, which is no JSON object")
    return value


def line_index(data: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> np.ndarray:
    """Return n, n starts and n stops of the lines that hold more than white space, and for each
    other line how many of them are before it.

    ``progress`` is called now and then with the number of bytes scanned.
    """
    newlines = []
    for at in range(0, data.size, _BLOCK):
        newlines.append(np.flatnonzero(data[at : at + _BLOCK] == _NEWLINE) + at)
        progress(min(at + _BLOCK, data.size))
    stops = np.concatenate([*newlines, [data.size]]).astype(np.int64)
    starts = np.concatenate([[0], stops[:-1] + 1])
    if data[: len(MARK)].tobytes() == MARK:
        starts[0] = len(MARK)
    inked = starts < stops
    inked[inked] = _INK[data[starts[inked]]]
    for i in np.flatnonzero(~inked & (starts < stops)).tolist():
        inked[i] = _INK[data[starts[i] : stops[i]]].any()
    before = np.cumsum(inked)[~inked]
    return np.concatenate([[np.count_nonzero(inked)], starts[inked], stops[inked], before])


def _fits(file: DataFile, index: np.ndarray) -> bool:
    """Return whether lines of a file still begin and end where its index says, at some places.

    The stamp of a remote file names its content.
    """
    if is_remote(file.path):
        return True
    data = mapped(file)
    starts, stops, _ = np.split(index[1:], [index[0], 2 * index[0]])
    return all(
        (starts[i] <= len(MARK) or data[starts[i] - 1] == _NEWLINE)
        and (stops[i] == data.size or data[stops[i]] == _NEWLINE)
        for i in some_of(len(starts))
    )


def _part(file: DataFile, cache: IndexCache, bad: BadRecords) -> FilePart:
    """Return the part that has the lines of one file."""

    def build() -> np.ndarray:
        return line_index(mapped(file), cache.progress_of(file))

    index = cache.get(file, "jsonl, lines", build, partial(_fits, file))
    starts, stops, blank = np.split(index[1:], [index[0], 2 * index[0]])

    def lines(records: np.ndarray) -> np.ndarray:
        return records + 1 + np.searchsorted(blank, records, side="right")

    return FilePart(file, parsed, bad, starts, stops, lines)


def _lines(file: DataFile, walk: Records) -> Iterator[Record]:
    """Yield the lines of a file that is compressed."""
    byte, number, blank = walk.place
    with open_forward(file, byte) as stream:
        lines = Lines(stream, byte)
        for line in lines:
            here, byte = Place(byte, number, blank), lines.byte
            if not line or line.isspace():  # a byte order mark may have been all
                blank += 1
                continue
            number += 1
            walk.place = Place(byte, number, blank)
            try:
                record = Record(here, parsed(line))
            except ValueError as error:
                record = Record(here, None, str(error))
            yield record
