"""The builder: a pipeline is declared by calls, each of which gives a new pipeline.

    read_…() ─► .shuffle .repeat      the order, and how often      (each at most once)
             ─► .map .filter .select  stages, in the order of the calls
             ─► .rejection_sample .stratified_sample .resample_at_rate .weighted_resample
             ─► .batch .bucket .batch_sequences_with_states …     the shape: exactly one, last
    .options() goes anywhere.  .declaration() is what a server is given.

A mistake is a TypeError or ValueError of the call that makes it, and names argument, value and
limit.  Nothing is read, and no user code runs, until the pipeline is served.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace_proto.schema import Field, schema_from_wire, schema_to_wire

from .bucketing import MAX_BATCH_SIZE, read_bound
from .checks import checked_flag, checked_int, checked_names, checked_schema, one_of
from .declaration import Declaration, Feature, Order, Policy, Shape, Source, Stage, jsonable
from .examples import packed_fields
from .former import former
from .naming import name_of
from .sequences import SEQUENCES, Sequencing, declared_by

__all__ = ["MAX_BATCH_SIZE", "Pipeline"]

#: Rows of a window lie in memory, and a position in it fits 32 bits.
_MAX_WINDOW = 2**31 - 1
_MAX_COUNT = 2**62
_SHAPES = (
    ".batch(batch_size)",
    ".bucket(which_bucket, batch_size, num_buckets)",
    ".bucket_by_sequence_length(input_length, batch_size, bucket_boundaries)",
    ".rejection_sample(accept_prob, batch_size)",
    ".stratified_sample(labels, target_probs, batch_size)",
    ".stratified_sample_unknown_dist(labels, probs, batch_size)",
    ".batch_sequences_with_states(input_key, input_sequences, input_context, …)",
    ".sequence_queueing_state_saver(batch_size, num_unroll, input_length, …)",
)
_IN_ORDER = Order()
_STRICT = Policy()

#: A user's function, or its name: "module:function" or "path.py:function".
Function = Callable[..., Any] | str


@dataclass(frozen=True, eq=False, repr=False)
class Pipeline(Sequencing):
    """A pipeline as far as it has been declared.  Never changes: every call gives another one.

    Made by ``read_tfrecord`` and its like.  Pipelines that declare the same are equal.
    """

    _source: Source
    _order: Order = _IN_ORDER
    _stages: tuple[Stage, ...] = ()
    _shape: Shape | None = None
    _policy: Policy = _STRICT
    _repeated: bool = False

    # Order

    def shuffle(self, seed: int = 0, window: int | None = None, reshuffle: bool = True) -> Pipeline:
        """Go through the examples of the source in an order drawn from ``seed``.

        Exact: every order is as likely as any other, at no cost of memory.  With ``window`` only
        every ``window`` neighbours are mixed, which sources that can only be read forward need
        (compressed ones, say).  ``reshuffle`` gives each epoch another order.  It is the source's
        examples that are put in order, before all stages, wherever among them this is called.
        """
        self._open("shuffle")
        if self._order.seed is not None:
            raise ValueError("shuffle() is called twice: an order is drawn once")
        if self._repeated:
            raise ValueError(
                "shuffle() after repeat() would mix the examples of different epochs: call "
                "shuffle() before repeat(); reshuffle=True gives each epoch another order"
            )
        order = replace(
            self._order,
            seed=checked_int("seed", seed, -(2**63), 2**63 - 1),
            window=checked_int("window", window, 1, _MAX_WINDOW, or_none=True),
            reshuffle=checked_flag("reshuffle", reshuffle),
        )
        return replace(self, _order=order)

    def repeat(self, n: int | None = None) -> Pipeline:
        """Go through the source ``n`` times, or for ever.

        A batch may hold the end of one epoch and the beginning of the next.
        """
        self._open("repeat")
        if self._repeated:
            raise ValueError("repeat() is called twice: give the product of both counts once")
        epochs = checked_int("n", n, 1, _MAX_COUNT, or_none=True)
        return replace(self, _order=replace(self._order, epochs=epochs), _repeated=True)

    # Stages

    def map(
        self,
        fn: Function,
        *,
        vectorized: bool = False,
        schema: Mapping[str, Feature | Field] | None = None,
    ) -> Pipeline:
        """Replace every example by what a function makes of it.

        ``fn`` gets an example as a dict of column to numpy scalar, array or bytes, and gives such
        a dict.  The arrays it gets are read-only views: copy what is to be changed in place.

        With ``vectorized=True`` it gets the columns of some hundred examples at once, and gives as
        many rows: arrays ``[n, …]``, object arrays of bytes, and where shapes vary ``Ragged`` of
        ``headrace_server.reading.columns``.

        ``schema`` says what the function gives.  Without one it is learnt from the first
        examples: a dimension in which those differ varies, and so does one that varied in a column
        of the same name, dtype and rank before.  A later example that does not fit is a DataError.
        """
        self._open("map")
        options = {
            "function": name_of(fn),
            "vectorized": checked_flag("vectorized", vectorized),
            "schema": None if schema is None else schema_to_wire(checked_schema("schema", schema)),
        }
        return self._with_stage(Stage("map", options))

    def filter(self, fn: Function, *, vectorized: bool = False) -> Pipeline:
        """Keep the examples for which a function gives True.  Those dropped are counted.

        ``fn`` gets what that of ``map`` gets, and gives a bool; with ``vectorized=True`` an array
        of one bool per example.
        """
        self._open("filter")
        options = {"function": name_of(fn), "vectorized": checked_flag("vectorized", vectorized)}
        return self._with_stage(Stage("filter", options))

    def select(self, names: Iterable[str]) -> Pipeline:
        """Keep these columns, in this order."""
        self._open("select")
        return self._with_stage(
            Stage("select", {"names": checked_names("names", names, self.fields)})
        )

    # Shape

    @former("dynamic_pad")
    def batch(
        self,
        batch_size: int,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
    ) -> Pipeline:
        """Every ``batch_size`` examples, in their order, make a batch.

        ``dynamic_pad`` pads dimensions that vary to the largest in the batch; without it, rows of
        unequal shapes in one batch are a DataError.  What remains at the end of the input is one
        smaller batch if ``allow_smaller_final_batch``, else it is dropped and counted.
        """
        self._open("batch")
        options = {
            "batch_size": checked_int("batch_size", batch_size, 1, MAX_BATCH_SIZE),
            "allow_smaller_final_batch": checked_flag(
                "allow_smaller_final_batch", allow_smaller_final_batch
            ),
            "dynamic_pad": checked_flag("dynamic_pad", dynamic_pad),
        }
        return self._with_shape(Shape("batch", options))

    # The feed

    def options(
        self,
        *,
        on_bad_example: Literal["fail", "skip"] = "fail",
        max_bad_examples: int | None = None,
    ) -> Pipeline:
        """What happens to examples that break a rule; replaces what was said before.

        "fail": the feed stops, every trainer gets the error.  "skip": they are counted, logged with
        their origin, and never more than ``max_bad_examples`` (None: any number).
        """
        one_of("on_bad_example", on_bad_example, ("fail", "skip"))
        most = checked_int("max_bad_examples", max_bad_examples, 0, _MAX_COUNT, or_none=True)
        if most is not None and on_bad_example == "fail":
            raise ValueError(
                f"max_bad_examples={most} needs on_bad_example='skip': the first bad example stops "
                "a feed with 'fail'"
            )
        return replace(self, _policy=Policy(on_bad_example, most))

    # What was declared

    @property
    def fields(self) -> dict[str, Field] | None:
        """The schema of an example where it is known; None where only reading will tell."""
        known = _fields_of(self._source)
        for stage in self._stages:
            if stage.kind == "map":
                wire = stage.options["schema"]
                known = None if wire is None else schema_from_wire(wire)
            elif stage.kind == "select" and known is not None:
                known = {name: known[name] for name in stage.options["names"]}
        return known

    def declaration(self) -> Declaration:
        """The whole pipeline as plain data.  ValueError while it has no shape."""
        if self._shape is None:
            raise ValueError(
                f"the pipeline has no shape: end it with one of {', '.join(_SHAPES)}\n{self!r}"
            )
        return Declaration(self._source, self._order, self._stages, self._shape, self._policy)

    def _open(self, method: str) -> None:
        if self._shape is not None:
            kind = self._shape.kind
            shape = "sequences with states" if kind == SEQUENCES else f".{kind}()"
            raise ValueError(
                f".{method}() comes after {shape}: the shape ends a pipeline; call "
                f".{method}() before it"
            )

    def _with_stage(self, stage: Stage) -> Pipeline:
        return replace(self, _stages=(*self._stages, stage))

    def _with_shape(self, shape: Shape) -> Pipeline:
        stages = tuple(_grouped(stage, shape) for stage in self._stages)
        _fits(stages, shape)
        return replace(self, _stages=stages, _shape=shape)

    def _identity(self) -> str:
        shape = self._shape or Shape("", {})
        whole = Declaration(self._source, self._order, self._stages, shape, self._policy)
        return json.dumps([whole.to_plain(), self._repeated], sort_keys=True, default=jsonable)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pipeline):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        order, policy = self._order, self._policy
        lines = [_source_text(self._source)]
        if order.seed is not None:
            shuffled = {"seed": order.seed, "window": order.window, "reshuffle": order.reshuffle}
            lines.append(_call("shuffle", shuffled))
        if self._repeated:
            lines.append(_call("repeat", {"n": order.epochs}))
        for step in (*self._stages, *((self._shape,) if self._shape else ())):
            options = dict(step.options)
            if options.get("schema"):
                options["schema"] = _Text(_schema_text(schema_from_wire(options["schema"])))
            if step.kind == SEQUENCES:
                lines.append(declared_by(options))
            else:
                lines.append(_call(step.kind, options))
        if policy != _STRICT:
            asked = {
                "on_bad_example": policy.on_bad_example,
                "max_bad_examples": policy.max_bad_examples,
            }
            lines.append(_call("options", asked))
        return "\n  .".join(lines)


def _grouped(stage: Stage, shape: Shape) -> Stage:
    """A weighted resampling that was told no group takes the batch size for one."""
    if stage.kind != "weighted_resample" or stage.options["group"] is not None:
        return stage
    sizes = shape.options.get("batch_sizes") or [shape.options["batch_size"]]
    known = [size for size in sizes if size is not None]
    if not known:
        raise ValueError(
            "weighted_resample() needs group=: the batches have no size to take for it"
        )
    return Stage(stage.kind, {**stage.options, "group": max(known)})


def _fits(stages: tuple[Stage, ...], shape: Shape) -> None:
    """A group of the source is read at once: what bounds a read must have room for it."""
    groups = {stage.options["group"] for stage in stages if stage.kind == "weighted_resample"}
    if len(groups) > 1:
        raise ValueError(
            f"weighted_resample() is called with groups of {sorted(groups)}: what is read at once "
            "is one group, so they must be alike"
        )
    group = max(groups, default=0)
    bound = read_bound(shape.options)
    if bound is not None and group > bound:
        raise ValueError(
            f"weighted_resample() reads group={group} examples at once, and bucket_capacities or "
            f"max_examples_in_flight let at most {bound} in: give a smaller group, or raise them"
        )


def _fields_of(source: Source) -> dict[str, Field] | None:
    if source.kind == "examples":
        return packed_fields(source.options)
    if source.features is None:
        return None
    return {name: feature.field for name, feature in source.features.items()}


class _Text(str):
    """A text that is its own repr."""

    __slots__ = ()
    __repr__ = str.__str__


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if value is not None)
    return f"{name}({said})"


def _schema_text(fields: Mapping[str, Field]) -> str:
    return "{" + ", ".join(f"{name}: {field}" for name, field in fields.items()) + "}"


def _source_text(source: Source) -> str:
    fields = _fields_of(source)
    options: dict[str, Any] = {}
    if source.kind == "examples":
        name = "from_examples"
        options["n"] = source.options["n"]
    else:
        name = "from_function" if source.kind == "function" else f"read_{source.kind}"
        options["paths"] = list(source.paths) or None
        options.update(source.options)
    if fields is not None:
        options["features"] = _Text(_schema_text(fields))
    return _call(name, options)
