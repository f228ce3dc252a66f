"""The base of all parts of the builder: a pipeline as far as it has been declared.

    Steps ◄── SourceSteps ◄── RowSteps ◄── Bucketing ◄── Sampling ◄── Sequencing ◄── Pipeline

A call gives a new pipeline with one stage more, or with its shape, which ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from headrace_proto.schema import Field, schema_from_wire

from .declaration import Plain, Policy, ReadingOrder, Shape, Source, Stage
from .examples import packed_fields
from .padding_options import PadTo, padded
from .read_groups import grouped
from .signatures import checking

#: The kind of the shape of sequences with states.
SEQUENCES = "sequences"
_IN_ORDER = ReadingOrder()
_STRICT = Policy()


@dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """Source, order, stages and shape, and how one more is added."""

    _source: Source
    _order: ReadingOrder = _IN_ORDER
    _stages: tuple[Stage, ...] = ()
    _shape: Shape | None = None
    _policy: Policy = _STRICT
    _repeated: bool = False
    _calls: tuple[str, ...] = ()  # that declare it, as text

    @property
    def fields(self) -> dict[str, Field] | None:
        """The schema of an example; None where it is known only after reading."""
        known = fields_of(self._source)
        for stage in self._stages:
            if stage.kind in ("map", "flat_map"):
                wire = stage.options["schema"]
                known = None if wire is None else schema_from_wire(wire)
            elif stage.kind == "select" and known is not None:
                known = {name: known[name] for name in stage.options["names"]}
            elif stage.kind == "unbatch" and known is not None:
                known = {name: Field(f.dtype, f.shape[1:]) for name, f in known.items()}
        return known

    @checking
    def batch(
        self,
        batch_size: int,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
        *,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        ragged: bool = False,
    ) -> Self:
        """Return batches of ``batch_size`` examples, in their order.

        ``dynamic_pad`` pads dimensions that vary to the largest in the batch; without it, rows of
        unequal shapes in one batch are a DataError.  Rows that remain at the end are one smaller
        batch if ``allow_smaller_final_batch``, else they are dropped and counted.

        With ``pad_to_multiple`` dimensions that vary are padded up to a multiple.  ``pad_to`` names
        columns and the size of their first dimension (or of several), the same in every batch; a
        longer example is a DataError.

        With ``ragged`` columns whose first dimension varies are not padded: a batch has the values
        of all rows one after the other, with their offsets.
        """
        return self._with_shape("batch", vars())

    def _open(self, method: str) -> None:
        if self._shape is not None and method != "options":
            kind = self._shape.kind
            shape = "sequences with states" if kind == SEQUENCES else f".{kind}()"
            raise ValueError(
                f".{method}() comes after {shape}: the shape ends a pipeline; call stages before "
                "it, and no second shape"
            )

    def _with_stage(self, kind: str, **options: Plain) -> Self:
        return replace(self, _stages=(*self._stages, Stage(kind, options)))

    def _with_shape(self, kind: str, options: Mapping[str, Any]) -> Self:
        """Return the pipeline with a shape of these options, or arguments of a step."""
        given = {name: value for name, value in options.items() if name != "self"}
        shape = Shape(kind, padded(given, self.fields))
        return replace(self, _stages=grouped(self._stages, shape), _shape=shape)


def fields_text(fields: Mapping[str, Field]) -> str:
    """Return a schema as text."""
    return "{" + ", ".join(f"{name}: {field}" for name, field in fields.items()) + "}"


def fields_of(source: Source) -> dict[str, Field] | None:
    for part in source.parts:
        if (known := fields_of(part)) is not None:
            return known
    if source.kind == "examples":
        return packed_fields(source.options)
    if source.features is None:
        return None
    return {name: feature.field for name, feature in source.features.items()}
