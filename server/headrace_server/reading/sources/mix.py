"""Several sources, from which each example is drawn by weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...pipeline.declaration import ReadingOrder
from ...pipeline.declaration import Source as Declared
from ..source import MixedReader, Opening, StreamSource
from .concat import Concat, open_parts


class Mix(Concat):
    """The sources of a mix; DataError where their columns differ."""

    @classmethod
    def open(cls, opening: Opening, sources: Sequence[Declared], **drawn: Any) -> StreamSource:
        drawn["orders"] = [ReadingOrder(**order) for order in drawn["orders"]]
        return MixedReader(open_parts(opening, sources, "mix"), **drawn)
