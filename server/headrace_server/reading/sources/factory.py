"""The function of a source, called once for each stream, and the iterators that it gives.

    factory(*args, shard=k) ─► iterable ─► iterator from example n on

A start in the middle of an iterable calls the factory again and discards the examples before it:
the cost of a resumed run grows with its position.  An object with ``iter_from(n)`` is asked for the
iterator from example n on instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from headrace_proto.errors import DataError
from headrace_server.pipeline.forks import own, own_iterator
from headrace_server.pipeline.function_names import error_with_place, resolve

from .example_rows import PROBED


class Factory:
    """Calls the function for each stream, and starts its iterators."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """``options``: those of the source."""
        self.name: str = options["function"]
        self.shards: int | None = options.get("shards")
        self.made: dict[int, Any] = {}  # by stream: results that were not iterated yet
        self._function = own(resolve)(self.name)
        self._args, self._kwargs = options.get("args") or (), options.get("kwargs") or {}
        self._counts = False
        if self.shards is not None:
            named = inspect.signature(self._function).parameters
            rest = any(p.kind is p.VAR_KEYWORD for p in named.values())
            if "shard" not in named and not rest:
                raise ValueError(
                    f"{self.name} takes no parameter 'shard', which shards={self.shards} needs: it "
                    "gives the examples of that shard"
                )
            self._counts = "num_shards" in named or rest

    def make(self, stream: int) -> Any:
        """Return the result of the function for a stream.  DataError when it fails."""
        kwargs = dict(self._kwargs)
        if self.shards is not None:
            kwargs["shard"] = stream
            if self._counts:
                kwargs["num_shards"] = self.shards
        try:
            return own(self._function)(*self._args, **kwargs)
        except Exception as error:
            raise DataError(_failed(self.name, "when it was called", error)) from error

    def iterator(self, stream: int, begin: int) -> Iterator[Any]:
        """Return the examples of a stream from number ``begin`` on."""
        made = self.made.pop(stream) if stream in self.made else self.make(stream)
        try:
            if begin and hasattr(made, "iter_from"):
                return own_iterator(own(made.iter_from)(begin))
            iterator: Iterator[Any] = own_iterator(made)
            next(islice(iterator, begin, begin), None)  # skips the examples given before
            return iterator
        except Exception as error:
            raise DataError(_failed(self.name, "when it was started", error)) from error

    def first_examples(self, streams: int, kind: str = "record") -> Iterator[tuple[int, Any]]:
        """Yield the first examples of each stream with their numbers, or the error in place of one.

        It keeps the results of the function, so that reading needs no second call.
        """
        for stream in range(streams):
            iterator, seen, failed = self.iterator(stream, 0), list[Any](), False
            try:
                for example in islice(iterator, PROBED):
                    seen.append(example)
                    yield len(seen) - 1, example
            except Exception as error:  # reading meets it again, and reports it
                failed = True
                yield len(seen), DataError(f"{self.name}, {kind} {len(seen)}: {raised(error)}")
            finally:  # the caller may have seen enough
                if not failed:
                    self.made[stream] = chain(seen, iterator)


def _failed(name: str, when: str, error: Exception) -> str:
    return f"{name}: {raised(error, f' {when}')}"


def raised(error: Exception, when: str = "") -> str:
    return f"it raised {error_with_place(error, when)}"
