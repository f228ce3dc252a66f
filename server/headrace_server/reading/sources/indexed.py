"""Examples of anything with ``len`` and ``[i]``, by number: an object of the user's, or what a
function returns.

Exact shuffling, and any position at once.  Each process of the server has the object once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from headrace_proto.errors import DataError, brief, kind_of

from ...pipeline.declaration import Plain
from ...pipeline.function_names import Sent, error_with_place, resolve
from ..example_rows import Each, Row, RowPart, reader_of_rows
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
        io_threads: int = 1,
        lengths: str | bytes | None = None,
    ) -> StreamSource:
        """``called``: the function is one that returns the object.

        ``lengths`` are the steps of its examples, int64, or the name of its attribute with them.
        """
        name, bad = str(function), opening.bad
        bad.enters(name)
        examples = resolve(function)
        try:
            if called:
                examples = examples(*args, **kwargs)
            length = len(examples)
            if not hasattr(examples, "__getitem__"):
                raise TypeError(f"{kind_of(examples)} has no items by number")
            steps = lengths if lengths is None else _steps(examples, lengths, length)
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

        each: Each = map
        if io_threads > 1:
            each = ThreadPoolExecutor(io_threads, "headrace-io").map
        elif (many := getattr(examples, "__getitems__", None)) is not None:
            each = _together(many)
        reader = reader_of_rows(
            [RowPart(name, length, get, bad, each=each, steps=steps)], opening.features
        )
        bad.enters("")
        return reader


def _steps(examples: object, lengths: str | bytes, count: int) -> np.ndarray:
    """Return the steps of each example, as they are declared."""
    if isinstance(lengths, bytes):
        steps = np.frombuffer(lengths, np.int64)
    else:
        steps = np.asarray(getattr(examples, lengths))
    if steps.shape != (count,) or steps.dtype.kind not in "iu":
        raise ValueError(
            f"lengths= gives {steps.dtype}{list(steps.shape)}; one integer for each of {count} "
            "examples is wanted"
        )
    return steps.astype(np.int64)


def _together(many: Callable[[list[int]], Sequence[Row]]) -> Each:
    """Get rows by one call, or one by one where that fails, so that the faulty one is named."""

    def each(
        row_of: Callable[[int], Row | DataError], numbers: list[int]
    ) -> Iterable[Row | DataError]:
        try:
            rows = many(numbers)
            sound = len(rows) == len(numbers) and all(isinstance(row, Mapping) for row in rows)
        except Exception:
            sound = False
        return rows if sound else map(row_of, numbers)

    return each
