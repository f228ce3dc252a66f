"""Several sources, from which each example is drawn by weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_proto.schema import Field

from ...pipeline.declaration import Plain, ReadingOrder
from ...pipeline.declaration import Source as Declared
from ..source import MixedReader, Opening, Source, StreamSource
from .concat import Concat, open_parts


class Mix(Source):
    """The sources of a mix; DataError where their columns differ."""

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field] | None:
        return Concat.declared(source)

    @classmethod
    def open(
        cls,
        opening: Opening,
        sources: Sequence[Plain],
        names: Sequence[str],
        orders: Sequence[Plain],
        **drawn: Plain,
    ) -> StreamSource:
        own = [ReadingOrder(**order) for order in orders]
        return MixedReader(open_parts(opening, sources, "mix"), names, own, **drawn)
