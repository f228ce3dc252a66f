"""``flat_map``: every example replaced by those that a function gives for it.

    example 7 ─► flat_map ─► outputs 0, 1, 2 ─► rows of ordinals  7, hash(7, 1), hash(7, 2)

A position is that of a read, and a plan names rows of it: a resume between two outputs unfolds the
chunk again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

import numpy as np

from headrace_proto.errors import brief, kind_of

from ..chunk import BadRecords, Chunk
from .map import Map

#: Rows of one example: more are a function without an end.
MAX_OUTPUTS: Final = 2**20


class FlatMap(Map):
    """A function of the user's that gives any number of examples for one."""

    keeps_count = False
    _call = "flat_map"

    def open(self) -> None:
        super().open()
        self._function.call = _listed(self._function.call)

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        names: list[str] = []  # of the first output, while none are known
        rows, results = self._function.over_rows(
            chunk, bad, lambda r: self._fault_of(r, names), self.epoch
        )
        counts = np.array([len(outputs) for outputs in results], np.int64)
        self.counts["no_output"] += int((counts == 0).sum())
        listed = [output for outputs in results for output in outputs]
        if not listed:
            return chunk.take(slice(0, 0))
        unfolded = self.repeated(chunk.take(np.array(rows, np.int64)), counts)
        given = {name: [output[name] for output in listed] for name in listed[0]}
        return self._results.put(unfolded, given, self._before, bad)

    def _fault_of(self, outputs: object, names: list[str]) -> str:
        """Return the fault of the outputs of one example, or ""."""
        if not isinstance(outputs, list):
            return (
                f"gave {brief(outputs)}, {kind_of(outputs)}; a flat_map gives a list (or "
                "another iterable) of dicts of column to value"
            )
        if len(outputs) > MAX_OUTPUTS:
            return f"gave more than {MAX_OUTPUTS} outputs for one example"
        seen = list(names)
        for i, output in enumerate(outputs):
            if fault := self.fault(output, None, seen):
                return f"as output {i} {fault}"
        names[:] = seen
        return ""


def _listed(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function with its outputs as a list, at most one more than are allowed."""

    def call(*given: object) -> object:
        outputs = function(*given)
        if isinstance(outputs, (str, bytes, Mapping)) or not isinstance(outputs, Iterable):
            return outputs
        return list(islice(outputs, MAX_OUTPUTS + 1))

    return call
