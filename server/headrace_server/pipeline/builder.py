"""The builder: a pipeline is declared by calls, each of which gives a new pipeline.

    read_…() ─► .skip .take .concat   fewer and more examples
             ─► .shuffle .repeat      the order, and how often      (each at most once)
             ─► .map .flat_map .unbatch .filter .select      stages, in the order of the calls
             ─► .rejection_sample .stratified_sample .resample_at_rate .weighted_resample
             ─► .batch .bucket .batch_sequences_with_states …     the shape: exactly one, last
    .options() goes anywhere.  .declaration() is what a server is given.

A mistake is a TypeError or ValueError of the call that makes it, and names argument, value and
limit.  Nothing is read, and no user code runs, until the pipeline is served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from headrace_proto.schema import schema_from_wire

from .argument_checks import MAX_COUNT, checked_int, one_of
from .declaration import Declaration, Policy, Shape, Source, jsonable
from .segmenting import Sequencing, declared_by
from .signatures import checking
from .steps import SEQUENCES, fields_of, fields_text

_SHAPES = (
    ".batch(batch_size), .bucket(which_bucket, batch_size, num_buckets), "
    ".bucket_by_sequence_length(input_length, batch_size, bucket_boundaries), "
    ".rejection_sample(accept_prob, batch_size), "
    ".stratified_sample(labels, target_probs, batch_size), "
    ".stratified_sample_unknown_dist(labels, probs, batch_size), "
    ".batch_sequences_with_states(input_key, input_sequences, input_context, …), "
    ".sequence_queueing_state_saver(batch_size, num_unroll, input_length, …)"
)


class Pipeline(Sequencing):
    """A declared pipeline, complete or not. Immutable: every call returns another one.

    Made by ``read_tfrecord`` and its like.  Pipelines that declare the same are equal.
    """

    # Order

    @checking
    def shuffle(self, seed: int = 0, window: int | None = None, reshuffle: bool = True) -> Pipeline:
        """Go through the examples of the source in an order drawn from ``seed``.

        Exact: every order is as likely as any other, at no cost of memory.  Sources that can only
        be read forward, such as compressed files, need ``window``: then each run of ``window``
        adjacent examples is mixed.  ``reshuffle`` gives each epoch another order.  The source's
        examples are shuffled before all stages, also if this is called after some of them.
        """
        if self._order.seed is not None:
            raise ValueError("shuffle() is called twice: an order is drawn once")
        if self._repeated:
            raise ValueError(
                "shuffle() after repeat() would mix the examples of different epochs: call "
                "shuffle() before repeat(); reshuffle=True gives each epoch another order"
            )
        if window is None and "function" in (leaf.kind for leaf in self._source.leaves):
            raise ValueError(
                "window=None: from_function can only be read forward; give the number of adjacent "
                "examples that are mixed"
            )
        order = replace(self._order, seed=seed, window=window, reshuffle=reshuffle)
        return replace(self, _order=order)

    @checking
    def repeat(self, n: int | None = None, across_batches: bool = True) -> Pipeline:
        """Go through the source ``n`` times, or for ever: in ``n`` epochs.

        A batch may hold the end of one epoch and the beginning of the next.  With
        ``across_batches=False`` each epoch ends as the feed does: its last batches are smaller, or
        its last rows dropped and counted, as the shape says; examples of a feed of segments end
        before those of the next epoch begin.  ``feed.epochs()`` then gives a trainer one epoch
        after the other, and a ``for`` over the feed is one epoch.
        """
        if self._repeated:
            raise ValueError("repeat() is called twice: give the product of both counts once")
        order = replace(self._order, epochs=n, across_batches=across_batches)
        return replace(self, _order=order, _repeated=True)

    # The feed

    def options(
        self,
        *,
        on_bad_example: Literal["fail", "skip"] = "fail",
        max_bad_examples: int | None = None,
    ) -> Pipeline:
        """Declare the policy for bad examples, in place of an earlier one.

        "fail": the feed stops, every trainer gets the error.  "skip": they are counted, logged with
        their origin, and never more than ``max_bad_examples`` (None: any number).
        """
        one_of("on_bad_example", on_bad_example, ("fail", "skip"))
        most = checked_int("max_bad_examples", max_bad_examples, 0, MAX_COUNT, or_none=True)
        if most is not None and on_bad_example == "fail":
            raise ValueError(
                f"max_bad_examples={max_bad_examples} needs on_bad_example='skip': the first bad "
                "example stops a feed with 'fail'"
            )
        return replace(self, _policy=Policy(on_bad_example, most))

    # The declaration

    def declaration(self) -> Declaration:
        """Return the whole pipeline as plain data.  ValueError while it has no shape."""
        if self._shape is None:
            raise ValueError(f"the pipeline has no shape: end it with one of {_SHAPES}\n{self!r}")
        return Declaration(self._source, self._order, self._stages, self._shape, self._policy)

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
            drawn = ("seed", "window", "reshuffle")
            lines.append(_call("shuffle", {name: getattr(order, name) for name in drawn}))
        if self._repeated:
            across = None if order.across_batches else False
            lines.append(_call("repeat", {"n": order.epochs, "across_batches": across}))
        for step in (*self._stages, *((self._shape,) if self._shape else ())):
            options = dict(step.options)
            if options.get("schema"):
                options["schema"] = _Text(fields_text(schema_from_wire(options["schema"])))
            if step.kind == SEQUENCES:
                lines.append(declared_by(options))
            else:
                lines.append(_call(step.kind, options))
        if policy != Policy():
            lines.append(_call("options", asdict(policy)))
        return "\n  .".join(lines)


class _Text(str):
    """A text that is its own repr."""

    __slots__ = ()
    __repr__ = str.__str__


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if value is not None)
    return f"{name}({given})"


def _source_text(source: Source) -> str:
    fields = fields_of(source)
    options: dict[str, Any] = {}
    if source.kind == "cut":
        skipped, stop = source.options["start"], source.options["stop"]
        lines = [_source_text(source.parts[0])]
        if skipped:
            lines.append(_call("skip", {"n": skipped}))
        if stop is not None:
            lines.append(_call("take", {"n": stop - skipped}))
        return "\n  .".join(lines)
    if source.kind == "concat":
        first, *others = source.parts
        texts = [_source_text(other).replace("\n  .", ".") for other in others]
        joined = [_call("concat", {"other": _Text(text)}) for text in texts]
        return "\n  .".join([_source_text(first), *joined])
    if source.kind == "examples":
        name = "from_examples"
        options["n"] = source.options["n"]
    else:
        name = "from_function" if source.kind == "function" else f"read_{source.kind}"
        options["paths"] = list(source.paths) or None
        options.update(source.options)
    if fields is not None:
        options["features"] = _Text(fields_text(fields))
    return _call(name, options)
