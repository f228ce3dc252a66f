"""A chunk: some hundred examples as columns, with where each came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace_proto.schema import Field

from .columns import Column, column_from_rows, concatenate, take


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The files and records that the rows of a chunk came from, for errors."""

    files: tuple[str, ...]  # or ("examples",), ("module:factory",) …
    file: np.ndarray  # int32 [n], index into files
    record: np.ndarray  # int64 [n], record number in its file, from 0
    offset: np.ndarray | None = None  # int64 [n], byte offset in its file where there is one

    @classmethod
    def single(cls, file: str, record: np.ndarray, offset: np.ndarray | None = None) -> Origin:
        return cls((file,), np.zeros(len(record), np.int32), record, offset)

    def take(self, rows: np.ndarray | slice) -> Origin:
        offset = None if self.offset is None else self.offset[rows]
        return Origin(self.files, self.file[rows], self.record[rows], offset)

    def describe(self, row: int) -> str:
        """Return the place of a row: ``FILE, record 17, byte 4096``."""
        text = f"{self.files[int(self.file[row])]}, record {int(self.record[row])}"
        return text if self.offset is None else f"{text}, byte {int(self.offset[row])}"

    @staticmethod
    def join(parts: list[Origin]) -> Origin:
        files = tuple(dict.fromkeys(name for part in parts for name in part.files))
        number = {name: i for i, name in enumerate(files)}
        maps = [np.array([number[name] for name in part.files], np.int32) for part in parts]
        offsets = [part.offset for part in parts]
        return Origin(
            files,
            np.concatenate([m[part.file] for m, part in zip(maps, parts, strict=True)]),
            np.concatenate([part.record for part in parts]),
            None if any(o is None for o in offsets) else np.concatenate(offsets),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Examples as columns: numpy arrays ``[n, …]``, ``Ragged`` where shapes vary, and ``Strings``.

    Its attributes are ``columns`` by name, the ``ordinals`` of the examples within the source, by
    which chance is keyed, their ``origin``, and ``facts``: values that stages computed for each row
    (its class, its rate …), which stay with the row, and which user functions do not see.
    """

    columns: Mapping[str, Column]
    ordinals: np.ndarray  # int64 [n]
    origin: Origin
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Mapping[str, Column], ordinals: np.ndarray, file: str) -> Chunk:
        """Return examples of one file, which are its records of these numbers."""
        return cls(columns, ordinals, Origin.single(file, ordinals))

    def __len__(self) -> int:
        return len(self.ordinals)

    def take(self, rows: np.ndarray | slice) -> Chunk:
        """Return these rows, in this order."""
        columns = {name: take(column, rows) for name, column in self.columns.items()}
        facts = {name: fact[rows] for name, fact in self.facts.items()}
        return Chunk(columns, self.ordinals[rows], self.origin.take(rows), facts)

    def with_columns(self, columns: Mapping[str, Column]) -> Chunk:
        """Return the rows with these columns in place of theirs."""
        return Chunk(dict(columns), self.ordinals, self.origin, self.facts)

    def with_fact(self, name: str, fact: np.ndarray) -> Chunk:
        """Return the rows with a value for each, which ``fact_fields`` of the stage names."""
        return Chunk(self.columns, self.ordinals, self.origin, {**self.facts, name: fact})

    def without_fact(self, name: str) -> Chunk:
        facts = {known: fact for known, fact in self.facts.items() if known != name}
        return Chunk(self.columns, self.ordinals, self.origin, facts)

    @staticmethod
    def empty(fields: Mapping[str, Field], file: str = "") -> Chunk:
        """Return a chunk without rows."""
        none = np.empty(0, np.int64)
        columns = {name: column_from_rows([], field) for name, field in fields.items()}
        return Chunk(columns, none, Origin.single(file, none))

    @staticmethod
    def join(chunks: Iterable[Chunk]) -> Chunk:
        """Return one chunk after the other.  Copies payload: not for the hot path."""
        parts = list(chunks)
        if not parts:
            raise ValueError("no chunks to join")
        if len(parts) == 1:
            return parts[0]
        names = list(parts[0].columns)
        return Chunk(
            {name: concatenate([part.columns[name] for part in parts]) for name in names},
            np.concatenate([part.ordinals for part in parts]),
            Origin.join([part.origin for part in parts]),
            {name: np.concatenate([p.facts[name] for p in parts]) for name in parts[0].facts},
        )
