"""Tar files in the WebDataset layout (.tar, .tar.gz, .tgz): a stream per file.

    dir/0001.flac  dir/0001.cls  dir/0001.json │ dir/0002.flac …
    └─ key ──┘└ column                         └─ the next example

Neighbouring files whose names agree up to the first dot of the last part are one example; the rest
after that dot names the column.  ``__key__`` is the column of keys.  The last ending determines the
kind of content: .npy is an array, .cls an int64, all others are bytes.  Files without a dot,
hidden files and members that are no files belong to no example.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from headrace_proto import limits
from headrace_server.files.manifest import DataFile
from headrace_server.reading.columns import Strings
from headrace_server.reading.reader import Opening, StreamReader

from .forward_files import open_forward
from .npy import array_column, npy_array
from .record_streams import Place, Record, Records, file_streams
from .tar_members import Member, content, members

KEY = "__key__"


def open_reader(opening: Opening) -> StreamReader:
    wanted = features = opening.source.features
    return file_streams(opening, partial(_examples, wanted), features)


def _examples(wanted: Collection[str] | None, file: DataFile, walk: Records) -> Iterator[Record]:
    """Yield the examples of a file."""
    with open_forward(file, walk.place.byte) as stream:
        parts = _parts_of_examples(members(stream, walk.place.byte))
        for key, group in groupby(parts, lambda part: part.key):
            row: dict[str, Any] = {KEY: key.encode(errors="surrogateescape")}
            wrong, first = "", next(group)
            here = walk.place = Place(first.member.byte, walk.place.record)
            for part in chain([first], group):
                column = part.column
                try:
                    if len(row) > limits.MAX_COLUMNS:
                        raise ValueError(
                            f"the example has more than {limits.MAX_COLUMNS} columns: names that "
                            "agree up to their first dot are one example"
                        )
                    if column in row:
                        raise ValueError(f"the example has two members for the column {column!r}")
                    read = wanted is None or column in wanted
                    row[column] = _decoded(column, content(stream, part.member)) if read else None
                except ValueError as error:
                    wrong = wrong or f"member {part.member.name!r}: {error}"
            walk.place = Place(part.member.after, here.record + 1)
            yield Record(here, None, wrong) if wrong else Record(here, row)


class _Part(NamedTuple):
    """A member that belongs to an example: the example's key, and the column that it holds."""

    key: str
    column: str
    member: Member


def _parts_of_examples(found: Iterable[Member]) -> Iterator[_Part]:
    for member in found:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if member.is_file and stem and dot and ending:
            yield _Part(f"{folder}{slash}{stem}", ending, member)


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
