"""The part of the builder that takes fewer examples of a source, or those of another one too.

    read_…()     0 1 2 3 4 5      .skip(2)  2 3 4 5      .take(3)  0 1 2
    other        6 7              .concat(other)  0 1 2 3 4 5 6 7

They count examples of the source, before the order and all stages, so they mean the same for any
number of partitions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from .argument_checks import MAX_COUNT, check_kind
from .declaration import Policy, ReadingOrder, Source
from .signatures import checking
from .steps import Steps, fields_text


class SourceSteps(Steps):
    """Steps between a source and the order of its examples."""

    @checking
    def take(self, n: int) -> Self:
        """Read the first ``n`` examples of the source, or all where it has fewer.

        All partitions together read ``n`` examples in every epoch, the first in the order of the
        source (file by file where it can only be read forward).  Call it before ``shuffle`` and all
        stages.
        """
        self._at_source("take")
        start, stop = self._range()
        return self._cut(start, min(start + n, MAX_COUNT if stop is None else stop))

    @checking
    def skip(self, n: int) -> Self:
        """Leave out the first ``n`` examples of the source, as ``take`` counts them.

        A source that can be read by number does not read them; of another each process reads them
        once.
        """
        self._at_source("skip")
        start, stop = self._range()
        if stop is not None and start + n >= stop:
            raise ValueError(f"skip(n={n}) leaves out all of the {stop - start} that are taken")
        return self._cut(min(start + n, MAX_COUNT), stop) if n else self

    @checking
    def concat(self, other: Steps) -> Self:
        """Read the examples of another source after those of this one.

        Both have the same columns.  A shuffle mixes the examples of both where both can be read by
        number.
        """
        self._at_source("concat")
        check_kind("other", other, Steps, "a pipeline without stages")
        plain = not (other._stages or other._repeated or other._shape)
        if not plain or other._order != ReadingOrder() or other._policy != Policy():
            raise ValueError(
                "concat(other) joins two sources: other has an order, stages, options or a shape; "
                "call them on the result of concat"
            )
        one, two = self.fields, other.fields
        if one is not None and two is not None and one != two:
            raise ValueError(
                f"concat(other): other has the columns {fields_text(two)}, and this source "
                f"{fields_text(one)}"
            )
        sources = [*_parts_of(self._source), *_parts_of(other._source)]
        paths = tuple(path for source in sources for path in source.paths)
        options = {"sources": [source.to_plain() for source in sources]}
        return replace(self, _source=Source("concat", paths, None, options))

    def _at_source(self, method: str) -> None:
        if self._stages:
            raise ValueError(
                f".{method}() comes after .{self._stages[0].kind}(): it counts examples of the "
                "source; call it before all stages"
            )
        if self._order != ReadingOrder() or self._repeated:
            raise ValueError(
                f".{method}() comes after .{'repeat' if self._repeated else 'shuffle'}(): it "
                f"counts examples in the order of the source; call .{method}() before it"
            )

    def _range(self) -> tuple[int, int | None]:
        """Return the first example that is read, and the one after the last."""
        options = self._source.options
        cut = self._source.kind == "cut"
        return (options["start"], options["stop"]) if cut else (0, None)

    def _cut(self, start: int, stop: int | None) -> Self:
        source = self._source.parts[0] if self._source.kind == "cut" else self._source
        options = {"sources": [source.to_plain()], "start": start, "stop": stop}
        return replace(self, _source=Source("cut", source.paths, None, options))


def _parts_of(source: Source) -> tuple[Source, ...]:
    return source.parts if source.kind == "concat" else (source,)
