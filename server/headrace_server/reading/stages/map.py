"""``map``: every example replaced by the result of a function.

The schema is declared, or inferred from the first rows that reach the stage and then fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto.errors import brief, kind_of
from headrace_proto.schema import schema_from_wire

from ...pipeline.examples import names_fault
from ...pipeline.function_names import Sent
from ..chunk import BadRecords, Chunk
from ..row_functions import Draws, Given, Results, RowFunction
from ..stage import Fields, Stage


class Map(Stage):
    """A function of the user's, of one example or with ``vectorized`` of a whole chunk.

    ``schema`` is on the wire; ``group`` is that of a vectorized function with a ``seed``.
    """

    keeps_count = True
    _call = "map"

    def __init__(
        self,
        function: str | Sent,
        vectorized: bool = False,
        schema: Any = None,
        seed: int | None = None,
        group: int | None = None,
    ) -> None:
        label = f"{self._call} function {function}"
        self.repeatable, self._seed = seed is None, seed
        # One read of a group takes one draw.
        self.group = group if vectorized and seed is not None else 0
        self._function = RowFunction(function, label, f"{self._call}_failed", vectorized)
        remedy = (
            "this is what its schema declares"
            if schema is not None
            else "that is what its first results showed: declare schema= where results differ"
        )
        fields = None if schema is None else schema_from_wire(schema)
        self._results = Results(fields, f"{label} gave ", f"; {remedy}")
        self._before: Fields = {}

    def open(self) -> None:
        self._function.load()
        if self._seed is not None:
            self._function.draws = Draws(self._seed, self.number)

    def fields_after(self, before: Fields | None) -> Fields | None:
        self._before = before or self._before
        return self._results.fields

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        given: dict[str, Given]
        if self._function.vectorized:
            whole = self._function.over_columns(
                chunk, bad, lambda r: self.fault(r, len(chunk)), self.epoch
            )
            if whole is None:
                return chunk.take(slice(0, 0))
            given = dict(whole)
        else:
            names: list[str] = []  # names of the first row, while no schema is known
            rows, results = self._function.over_rows(
                chunk, bad, lambda r: self.fault(r, None, names), self.epoch
            )
            if not rows:
                return chunk.take(slice(0, 0))
            if len(rows) < len(chunk):
                chunk = chunk.take(np.array(rows, np.int64))
            given = {name: [result[name] for result in results] for name in results[0]}
        return self._results.put(chunk, given, self._before, bad)

    def fault(self, result: object, n: int | None, names: list[str] | None = None) -> str:
        """Return the fault of a result as a whole, or ""; a vectorized one must have ``n`` rows."""
        if not isinstance(result, Mapping):
            return (
                f"gave {brief(result)}, {kind_of(result)}; a map gives a dict of column to "
                "value (return the dict, also where it was changed in place)"
            )
        wanted = names if self._results.fields is None else list(self._results.fields)
        if wanted and (len(result) != len(wanted) or any(name not in result for name in wanted)):
            return f"gave the columns {list(result)}; the others of this run are {wanted}"
        if not wanted:
            if fault := names_fault(result):
                return f"gave {fault}"
            if names is not None:
                names.extend(result)
        if n is None:
            return ""
        for name, value in result.items():
            try:
                rows = len(value)
            except Exception:
                return f"gave column {name!r} of no length: {brief(value)}; {n} rows are wanted"
            if rows != n or isinstance(value, (bytes, str, Mapping)):
                return (
                    f"gave column {name!r} as {kind_of(value)} of length {rows}; a "
                    f"vectorized map gives as many rows as it gets, here {n}"
                )
        return ""
