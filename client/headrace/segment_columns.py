"""The columns of one group of a batch of segments, by the names that the feed declares.

sequences["x"] ─► the column "sequences:x" of the batch      context["y"] ─► "context:y"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace_proto.errors import near

if TYPE_CHECKING:
    from .segments import SegmentBatch


class Columns(Mapping[str, Any]):
    """The sequences, or the context, of a batch by name."""

    __slots__ = ("_batch", "_group")

    def __init__(self, batch: SegmentBatch, group: str) -> None:
        self._batch = batch
        self._group = group

    def __getitem__(self, name: str) -> Any:
        try:
            return self._batch._column(f"{self._group}:{name}")
        except KeyError:
            known = list(self)
        what = f"{name!r} is not in the {self._group} of this batch; there is {known}"
        raise KeyError(what + near(name, known))

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch._layout.names(self._group))

    def __len__(self) -> int:
        return len(self._batch._layout.names(self._group))

    def __contains__(self, name: object) -> bool:
        return f"{self._group}:{name}" in self._batch._layout.schema

    def __repr__(self) -> str:
        return f"<{self._group} of {self._batch!r}>"
