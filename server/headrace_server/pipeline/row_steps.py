"""The part of the builder that works on examples one by one, by functions of the user's mostly.

    .map        one for one             .filter     one or none         .select   fewer columns
    .flat_map   any number for one      .unbatch    each of its rows

Workers import functions of modules; others are sent to them, see function_names.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from headrace_proto.schema import Field

from .argument_checks import checked_names
from .declaration import Feature, Plain
from .function_names import name_of
from .signatures import checking
from .source_steps import SourceSteps

#: A user's function, or its name: "module:function" or "path.py:function".
Function = Callable[..., Any] | str


class RowSteps(SourceSteps):
    """Stages that judge each example by itself."""

    @checking
    def map(
        self,
        fn: Function,
        *,
        vectorized: bool = False,
        schema: Mapping[str, Feature | Field] | None = None,
        seed: int | None = None,
    ) -> Self:
        """Replace every example by the result of a function.

        ``fn`` gets an example as a dict of column to numpy scalar, array or bytes, and returns such
        a dict.  The arrays it gets are read-only views: copy an array before changing it in place.

        With ``vectorized=True`` it gets the columns of some hundred examples at once, and returns
        as many rows: arrays ``[n, …]``, object arrays of bytes, and where shapes vary ``Ragged`` of
        ``headrace_server.reading.columns``.

        ``schema`` declares the columns of the result.  Without it the first examples determine
        them: a dimension varies if it differs among those, or if it varied before in a column of
        the same name, dtype and rank.  A later example that does not fit is a DataError.

        With ``seed`` the call is ``fn(example, rng)``.  ``rng`` is a ``numpy.random.Generator`` of
        this example, stage and epoch alone: each epoch draws anew, and a resume draws
        the same again, for any number of workers and partitions.  With ``vectorized=True`` there is
        one for each 256 examples that a partition reads, counted from its first (or for each
        ``group`` of a weighted resampling), so the partitions must stay the same.
        """
        options = {"vectorized": vectorized, "schema": schema, **_seed("map", fn, seed)}
        return self._with_stage("map", function=name_of(fn), **options)

    @checking
    def flat_map(
        self,
        fn: Function,
        *,
        schema: Mapping[str, Feature | Field] | None = None,
        seed: int | None = None,
    ) -> Self:
        """Replace every example by those that a function returns for it: none, one or several.

        ``fn`` gets the same as that of ``map``, and returns a list of such dicts or yields them, at
        most 2**20.  They stay together, in their order, and errors name the example that they come
        from.  Examples without any are counted as ``no_output``.  ``schema`` and ``seed`` are those
        of ``map``; the outputs of one example share its ``rng``.
        """
        options = {"schema": schema, **_seed("flat_map", fn, seed)}
        return self._with_stage("flat_map", function=name_of(fn), **options)

    @checking
    def unbatch(self) -> Self:
        """Make an example of each row of examples that have a batch dimension.

        Every column has that dimension, of the same length in an example.  A row's outputs keep the
        order; an example of no row is counted as ``no_output``.
        """
        for name, field in (self.fields or {}).items():
            unbatched_field(name, field)
        return self._with_stage("unbatch")

    @checking
    def filter(self, fn: Function, *, vectorized: bool = False) -> Self:
        """Keep the examples for which a function returns True. Those dropped are counted.

        ``fn`` gets the same as that of ``map``, and returns a bool; with ``vectorized=True`` an
        array of one bool per example.
        """
        return self._with_stage("filter", function=name_of(fn), vectorized=vectorized)

    @checking
    def select(self, names: Iterable[str]) -> Self:
        """Keep these columns, in this order."""
        return self._with_stage("select", names=checked_names("names", names, self.fields))

    @checking
    def with_origin(self) -> Self:
        """Give each row ``batch.origin``, the ordinal of its example in the source (int64).

        The source is what the pipeline reads before ``shuffle`` and all stages: ``take`` and
        ``skip`` count anew, ``concat`` counts on.  All rows that ``flat_map``, ``unbatch`` and
        resampling make of one example have its ordinal, wherever this is called among the stages,
        and each epoch has the same ones.  A source that is read forward has the number of the
        stream (file or shard) times 2**40 plus the ordinal in it, and bad records count.
        """
        return self._with_stage("with_origin")


def unbatched_field(name: str, field: Field) -> Field:
    """Return the field of a row of a batched column; ValueError without a batch dimension."""
    if not field.shape:
        raise ValueError(
            f"unbatch (or enqueue_many=True): column {name!r} is {field}, one value per "
            "example, and has no rows; .select(names) chooses columns, a map before it may "
            "repeat a value for every row"
        )
    return Field(field.dtype, field.shape[1:])


def _seed(call: str, fn: Function, seed: int | None) -> dict[str, Plain]:
    """Return the option of a given seed; ValueError for a function that takes no ``rng``."""
    if seed is None:
        return {}
    with suppress(ValueError):  # of a function without a signature: the call itself will show
        signature = inspect.signature(fn) if callable(fn) else None
        try:
            if signature is not None:
                signature.bind(None, None)
        except TypeError as error:
            raise TypeError(
                f"{call}(seed={seed!r}) calls fn(example, rng), and {name_of(fn)}{signature} can "
                f"not be called so: {error}"
            ) from None
    return {"seed": seed}
