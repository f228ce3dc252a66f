"""The builder: a pipeline is declared by calls, each of which gives a new pipeline.

    read_…() ─► .skip .take .concat   fewer and more examples
             ─► .shuffle .repeat      the order, and how often      (each at most once)
             ─► .map .flat_map .unbatch .filter .select .with_origin    stages, in this order
             ─► .rejection_sample .stratified_sample .resample_at_rate .weighted_resample
             ─► .batch .bucket .batch_sequences_with_states …     the shape: exactly one, last
    .options() goes anywhere.  .declaration() is what a server is given.

A mistake is a TypeError or ValueError of the call that makes it, and names argument, value and
limit.  Nothing is read, and no user code runs, until the pipeline is served.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from headrace_proto.gone import absent

from .declaration import Declaration, Policy, Shape, jsonable
from .function_names import Sent
from .segmenting import Sequencing
from .signatures import checking

_SHAPES = (
    ".batch(batch_size), .bucket(which_bucket, batch_size, num_buckets), "
    ".bucket_by_sequence_length(input_length, batch_size, bucket_boundaries), "
    ".rejection_sample(accept_prob, batch_size), "
    ".stratified_sample(labels, target_probs, batch_size), "
    ".stratified_sample_unknown_dist(labels, probs, batch_size), "
    ".batch_sequences_with_states(input_key, input_sequences, input_context, …), "
    ".sequence_queueing_state_saver(batch_size, num_unroll, input_length, …)"
)


def _compared(value: Any) -> Any:
    """Return a stand-in for a byte string or a function; equal for the same function only."""
    return [value.name, id(value.function)] if isinstance(value, Sent) else jsonable(value)


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
        options = [leaf.options for leaf in self._source.leaves if leaf.kind == "function"]
        if window is None and any(o["shards"] is not None or "batched" in o for o in options):
            raise ValueError(
                "window=None: from_function with shards= or batched=True can only be read forward; "
                "give the number of adjacent examples that are mixed"
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

    @checking
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
        if max_bad_examples is not None and on_bad_example == "fail":
            raise ValueError(
                f"max_bad_examples={max_bad_examples} needs on_bad_example='skip': the first bad "
                "example stops a feed with 'fail'"
            )
        return replace(self, _policy=Policy(on_bad_example, max_bad_examples))

    # The declaration

    def declaration(self) -> Declaration:
        """Return the whole pipeline as plain data.  ValueError while it has no shape."""
        if self._shape is None:
            raise ValueError(f"the pipeline has no shape: end it with one of {_SHAPES}\n{self!r}")
        return Declaration(self._source, self._order, self._stages, self._shape, self._policy)

    def _identity(self) -> str:
        shape = self._shape or Shape("", {})
        whole = Declaration(self._source, self._order, self._stages, shape, self._policy)
        return json.dumps([whole.to_plain(), self._repeated], sort_keys=True, default=_compared)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pipeline):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    if not TYPE_CHECKING:  # where it would hide misspelt names

        def __getattr__(self, name: str) -> NoReturn:
            raise absent("Pipeline", name)

    def __repr__(self) -> str:
        return "\n  .".join(self._calls)
