"""Tar files in the WebDataset layout (.tar, .tar.gz, .tgz): a stream per file.

    dir/0001.flac  dir/0001.cls  dir/0001.json │ dir/0002.flac …
    └─ key ──┘└ column                         └─ the next example

Neighbouring files whose names agree up to the first dot of the last part are one example; the rest
after that dot names the column.  ``__key__`` is the column of keys.  The last ending determines the
kind of content: .npy is an array, .cls an int64, all others are bytes.  Files without a dot,
hidden files and members that are no files belong to no example.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from headrace_server.files.manifest import DataFile
from headrace_server.reading.columns import Strings
from headrace_server.reading.reader import BadRecords, Opening, StreamReader

from .npy import array_column, npy_array
from .record_streams import FileRecords, Place, StreamRecord, file_streams, open_plain
from .tar_members import Member, Members

KEY = "__key__"


def open_reader(opening: Opening) -> StreamReader:
    wanted = features = opening.source.features
    return file_streams(opening, partial(_Groups, wanted), features)


class _Groups(FileRecords):
    """A walk over the examples of a file."""

    def __init__(
        self, wanted: Collection[str] | None, file: DataFile, place: Place, bad: BadRecords
    ) -> None:
        super().__init__(file, place, bad)
        self._wanted = wanted
        self._waiting: tuple[Member, str, str] | None = None

    def next(self) -> StreamRecord | None:
        if self._opened is None:
            if not self._file.size:
                return None
            here = self.place.byte
            self._opened = Members(open_plain(self._file, here), here)
        return self._group(self._opened)

    def _group(self, members: Members) -> StreamRecord | None:
        first = self._waiting or self._take(members)
        if first is None:
            return None
        key = first[1]
        here = Place(first[0].byte, self.place.record)
        row: dict[str, Any] = {KEY: key.encode(errors="surrogateescape")}
        wrong, taken = "", first
        while True:
            try:
                self._add(row, taken[2], members)
            except ValueError as error:
                wrong = wrong or f"member {taken[0].name!r}: {error}"
            following = self._take(members)
            if following is None or following[1] != key:
                break
            taken = following
        self._waiting = following
        byte = members.byte if following is None else following[0].byte
        self.place = Place(byte, here.record + 1)
        return StreamRecord(here, None, wrong) if wrong else StreamRecord(here, row)

    def _take(self, members: Members) -> tuple[Member, str, str] | None:
        """Return the next member that belongs to an example, its key and its column."""
        while (member := members.next()) is not None:
            folder, slash, name = member.name.rpartition("/")
            stem, dot, ending = name.partition(".")
            if member.is_file and stem and dot and ending:
                return member, f"{folder}{slash}{stem}", ending
        return None

    def _add(self, row: dict[str, Any], column: str, members: Members) -> None:
        if column in row:
            raise ValueError(f"the example has two members for the column {column!r}")
        if self._wanted is None or column in self._wanted:
            row[column] = _decoded(column, members.data())
        else:
            row[column] = None


def _decoded(column: str, content: bytes) -> Any:
    ending = column.rpartition(".")[2]
    if ending == "npy":
        array = array_column(npy_array(np.frombuffer(content, np.uint8)))
        return array.to_objects() if isinstance(array, Strings) else array
    if ending == "npz":
        raise ValueError("it holds several arrays; store each as a .npy of its own")
    if ending == "cls":
        try:
            return int(content)
        except ValueError:
            raise ValueError(f"{content!r:.60} is no integer, as a .cls is") from None
    return content
