"""``with_origin``: the ordinal of its example in the source as a fact of each row."""

from __future__ import annotations

from headrace_proto.schema import Field

from ..chunk import Chunk
from ..stage import Fields, Stage


class WithOrigin(Stage):
    """``batch.origin``, noted before all stages: later ones see the ordinals of copies."""

    keeps_count = True

    def begin(self, chunk: Chunk) -> Chunk:
        return chunk.with_fact("origin", chunk.ordinals)

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        return {"origin": Field("int64")}
