"""Examples that arrive as mappings (JSON, CSV, tar, Python) become a chunk.

    rows ──► names and missing values ──► columns, whole ──► chunk
                                              └─ where one does not fit: row by row ─► reports

The layout is what was declared, or what a probe of the first examples showed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.pipeline.examples import as_array
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import column_from_rows
from headrace_server.reading.reader import BadRecords

from .inference import infer_fields

__all__ = ["Layout", "layout_of"]

_REMEDY = "declare the features of the source"


@dataclass(frozen=True)
class Layout:
    """Which columns examples have, and what stands in for missing values."""

    fields: Mapping[str, Field]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    declared: bool = False

    def chunk(
        self,
        rows: Sequence[Mapping[str, Any]],
        ordinals: np.ndarray,
        origin: Origin,
        bad: BadRecords,
    ) -> tuple[Chunk, np.ndarray | None]:
        """The rows that fit, and which they are (None: all); the others are reported."""
        wrong: set[int] = set()

        def report(i: int, reason: str, text: str) -> None:
            if i not in wrong:
                bad.report(DataError(f"{origin.describe(i)}, {text}"), reason)
                wrong.add(i)

        if not self.declared:
            for i, row in enumerate(rows):
                for name in row.keys() - self.fields.keys():
                    report(
                        i,
                        "wrong_type",
                        f"column {name!r}: the first examples have no such column; {_REMEDY}",
                    )
        values = {name: self._values(name, rows, report) for name in self.fields}
        columns = {}
        for name, of in self.fields.items():
            try:
                if not wrong:
                    columns[name] = column_from_rows(values[name], of)
            except ValueError:
                pass
            if name not in columns:
                self._search(name, values[name], report)
        if not wrong:
            return Chunk(columns, ordinals, origin), None
        which = np.array([i for i in range(len(rows)) if i not in wrong], np.int64)
        columns = {
            name: column_from_rows([values[name][i] for i in which.tolist()], of)
            for name, of in self.fields.items()
        }
        return Chunk(columns, ordinals[which], origin.take(which)), which

    def _values(
        self, name: str, rows: Sequence[Mapping[str, Any]], report: Callable[[int, str, str], None]
    ) -> list[Any]:
        values = [row.get(name) for row in rows]
        for i, value in enumerate(values):
            if value is None:
                if name in self.defaults:
                    values[i] = self.defaults[name]
                else:
                    remedy = "give the feature a default" if self.declared else _REMEDY
                    report(i, "missing_feature", f"column {name!r}: it is missing; {remedy}")
        return values

    def _search(
        self, name: str, values: Sequence[Any], report: Callable[[int, str, str], None]
    ) -> None:
        """Reports the rows whose value does not fit."""
        for i, value in enumerate(values):
            if value is None:
                continue
            try:
                column_from_rows([value], self.fields[name])
            except ValueError as error:
                rule = str(error).removeprefix("row 0: ")
                remedy = "" if self.declared else f"; {_REMEDY}"
                report(
                    i,
                    "wrong_type",
                    f"column {name!r}: {value!r:.60} {rule} (wanted {self.fields[name]}){remedy}",
                )


def layout_of(
    features: Mapping[str, Feature] | None, probe: Callable[[], Sequence[Mapping[str, Any]]]
) -> Layout:
    """The declared layout, or that of the examples that ``probe`` gives."""
    if features is None:
        return Layout(infer_fields(probe()))
    defaults = {}
    for name, feature in features.items():
        if feature.has_default:
            value = feature.default
            if feature.kind == "fixed":  # one value fills it
                value = np.broadcast_to(as_array(value), feature.shape)
            column_from_rows([value], feature.field)  # ValueError now, not at the first gap
            defaults[name] = value
    return Layout({name: f.field for name, f in features.items()}, defaults, declared=True)
