"""User functions over the rows of a chunk: those of ``map``, ``filter`` and selectors.

    chunk ─► one call for each example (or one for all) ─► results ─► checked

An example that breaks a rule (a function raises on it, or its result does not fit) is named by
its origin and goes to ``BadRecords``.  A vectorized function is responsible for all its rows:
when it raises, or does not return n rows, they are all bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace_proto.errors import DataError, HeadraceError, kind_of

from ..pipeline.forks import OwnProcess, own
from ..pipeline.function_names import Sent, error_with_place, resolve
from ..shaping import chance
from .chunk import Chunk
from .reader import BadRecords, fault_of
from .user_columns import columns_of, examples_of


@contextmanager
def user_code(name: str, bad: BadRecords) -> Iterator[None]:
    """Run code of a class of the user's: name it while it runs, and in the error that it raises."""
    bad.enters(name)
    try:
        with OwnProcess():
            yield
    except (HeadraceError, ImportError):
        raise
    except Exception as error:
        raise DataError(f"{name}: it raised {error_with_place(error)}") from error
    bad.enters("")


# ── Random generators for user functions: one for each example, independent of earlier draws.
#
#     seed, stage, epoch ─► key of Philox ─┐
#     ordinal ─► its counter ──────────────┴─► Generator: 2**128 numbers that no other example has
#
# Each call gets a new generator, so a resume and a retry draw the same numbers.


class Draws:
    """The generators of one stage; ``stage`` distinguishes stages of one seed."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = chance.derive(seed, chance.MAPS, stage)

    def generator(self, epoch: int, ordinal: int) -> np.random.Generator:
        """Return the generator of one example in an epoch."""
        key = chance.key(self._seed, chance.MAPS, epoch)
        counter = np.array([0, 0, ordinal & (2**64 - 1), 0], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class RowFunction:
    """A user function, and the texts of its faults."""

    def __init__(
        self,
        name: str | Sent,
        label: str,
        reason: str,
        vectorized: bool = False,
    ) -> None:
        """``label`` names it in errors, ``reason`` in counts."""
        self._named, self.name = name, str(name)
        self.label, self.reason, self.vectorized = label, reason, vectorized
        self.call: Callable[..., Any]
        self.draws: Draws | None = None

    def load(self) -> None:
        """Import it, before it is called.  ImportError where there is none."""
        function = own(resolve)(self._named)
        if not callable(function):
            raise ImportError(f"{self.label} is {kind_of(function)}, not a function")
        self.call = own(function)

    def fault(
        self, chunk: Chunk, row: int | None, text: str, cause: Exception | None = None
    ) -> DataError:
        """Return the fault of a row, or (None) of the whole chunk."""
        return fault_of(chunk, row, f"{self.label} {text}", cause)

    def _tried(self, check: Callable[[Any], str], *given: Any) -> tuple[Any, str, Exception | None]:
        """Return the result, its fault or "", and the exception that was raised instead."""
        try:
            result = self.call(*given)
        except Exception as error:
            return None, f"raised {error_with_place(error)}", error
        return result, check(result), None

    def over_rows(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[Any], str], epoch: int = 0
    ) -> tuple[list[int], list[Any]]:
        """Return the rows whose results pass ``check``, and these results."""
        rows, results = [], []
        progress, draws = bad.progress, self.draws
        bad.enters(self.name)
        for i, example in enumerate(examples_of(chunk)):
            progress()
            drawn = () if draws is None else (draws.generator(epoch, int(chunk.ordinals[i])),)
            result, fault, cause = self._tried(check, example, *drawn)
            if fault:
                bad.report(self.fault(chunk, i, fault, cause), self.reason)
                continue
            rows.append(i)
            results.append(result)
        bad.enters("")
        return rows, results

    def over_columns(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[Any], str], epoch: int = 0
    ) -> Any | None:
        """Return the function's result for the whole chunk; None for a bad one, which it reports.

        It gets the generator of the chunk's first example: where a seed is declared, each read is a
        group of a fixed number of examples.
        """
        draws = self.draws
        drawn = () if draws is None else (draws.generator(epoch, int(chunk.ordinals[0])),)
        bad.enters(self.name)
        result, fault, cause = self._tried(check, columns_of(chunk), *drawn)
        bad.enters("")
        if not fault:
            return result
        bad.report(self.fault(chunk, None, fault, cause), self.reason, len(chunk))
        return None
