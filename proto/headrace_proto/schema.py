"""Schemas of examples and batches: named fields with a dtype and a shape.

A dimension of None varies: from example to example in the schema of a source, from batch to
batch in the schema of a feed.  Schemas are plain values; they travel at connect, so that both
ends agree before the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import dtypes, limits
from .errors import ProtocolError

#: Facts of the rows travel as columns whose names start with this; a user's can not.
RESERVED = "@"
#: The facts of rows, such as ``batch.label``, and why a feed lacks one.  A batch of any shape has
#: those that the stages and the shape of its feed add: one number for each row.
FACTS: Final[Mapping[str, str]] = {
    "length": "it is not bucketed by length",
    "label": "it is not stratified",
    "rate": "it has no weighted_resample",
    "origin": "it has no with_origin()",
    "source": "it is no mix (hs.mix)",
    "version": "it does not cut sequences of a log (hs.live) before they end",
    "age": "it does not cut sequences of a log (hs.live) before they end",
    "stale": "it does not cut sequences of a log (hs.live) before they end",
}
#: Prefix of the column that has the offsets of a ragged column: int64 [B + 1].
#: The ragged column itself has the values of all rows, one after the other.
OFFSETS = "@offsets:"


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its dtype by wire name and the shape of one element (None = varies).

    ``ragged`` columns of a batch are not padded: each row has a length of its own.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    ragged: bool = False

    @property
    def ragged_dims(self) -> int:
        """Number of leading dimensions up to the last one that varies; 0 for a fixed shape."""
        for rank in range(len(self.shape), 0, -1):
            if self.shape[rank - 1] is None:
                return rank
        return 0

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape fits."""
        return len(shape) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{'ragged ' * self.ragged}{self.dtype}[{dims}]"


Schema = Mapping[str, Field]


def schema_to_wire(schema: Schema) -> list[list[Any]]:
    return [
        [name, field.dtype, [-1 if d is None else d for d in field.shape]]
        for name, field in schema.items()
    ]


def schema_from_wire(wire: Any) -> dict[str, Field]:
    """Return the schema that a peer sent; ProtocolError for anything else."""
    if not isinstance(wire, list) or len(wire) > limits.MAX_COLUMNS:
        raise ProtocolError(f"a schema is a list of at most {limits.MAX_COLUMNS} fields")
    schema: dict[str, Field] = {}
    for entry in wire:
        if not (isinstance(entry, list) and len(entry) >= 3):
            raise ProtocolError("a field of a schema is [name, dtype, shape]")
        name, dtype, shape = entry[:3]
        if not isinstance(name, str) or not 0 < len(name) <= limits.MAX_NAME or name in schema:
            raise ProtocolError(f"field name {name!r:.80} is not a new, non-empty, short string")
        if not isinstance(dtype, str) or dtype not in dtypes.DTYPES:
            raise ProtocolError(f"field {name!r} has dtype {dtype!r:.80}, which is not allowed")
        if not isinstance(shape, list) or len(shape) > limits.MAX_RANK:
            raise ProtocolError(f"field {name!r} has a shape that is no list of dimensions")
        if not all(type(d) is int and -1 <= d < 2**63 for d in shape):
            raise ProtocolError(f"field {name!r} has the impossible shape {shape!r:.80}")
        schema[name] = Field(dtype, tuple(None if d == -1 else d for d in shape))
    return schema


def rows_open(schema: Mapping[str, Field]) -> dict[str, Field]:
    """Return the schema of batches that may have any number of rows."""
    return {name: Field(f.dtype, (None, *f.shape[1:])) for name, f in schema.items()}
