"""Examples of anything with ``len`` and ``[i]``, by number: an object of the user's, or what a
function returns.

Exact shuffling, and any position at once.  Each process of the server has the object once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_proto.errors import DataError, brief, kind_of

from ...pipeline.declaration import Plain
from ...pipeline.function_names import Sent, error_with_place, resolve
from ..example_rows import Row, RowPart, reader_of_rows
from ..source import Opening, Source, StreamSource


class Indexed(Source):
    """An object of the user's whose items are dicts of columns."""

    @classmethod
    def open(
        cls,
        opening: Opening,
        function: str | Sent,
        args: Sequence[Plain],
        kwargs: Mapping[str, Plain],
        called: bool,
    ) -> StreamSource:
        """``called``: the function is one that returns the object."""
        name, bad = str(function), opening.bad
        bad.enters(name)
        examples = resolve(function)
        try:
            if called:
                examples = examples(*args, **kwargs)
            length = len(examples)
            if not hasattr(examples, "__getitem__"):
                raise TypeError(f"{kind_of(examples)} has no items by number")
        except Exception as error:
            raise DataError(f"{name}: it raised {error_with_place(error)}") from error

        def get(number: int) -> Row:
            try:
                row = examples[number]
            except Exception as error:
                raise ValueError(f"it raised {error_with_place(error)}") from error
            if not isinstance(row, Mapping):
                raise ValueError(f"{brief(row)} is {kind_of(row)}, not a dict of columns")
            return row

        reader = reader_of_rows([RowPart(name, length, get, bad)], opening.features)
        bad.enters("")
        return reader
