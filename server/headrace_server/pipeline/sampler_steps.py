"""The part of the builder that samples: by class, by acceptance, by weight.

Stages drop or repeat examples and leave the rest in order; with a ``batch_size`` they end the
pipeline in batches.  Names, order and defaults of arguments are those of the TensorFlow functions,
less those that named graph nodes, sized queues of the graph or counted threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from headrace_proto.errors import kind_of

from ..core.class_acceptance import acceptance, probabilities
from .argument_checks import checked_number
from .bucketing import Bucketing
from .padding_options import PadTo
from .selectors import Value, checked_value
from .signatures import checking

#: Counters of all classes go with every batch.
MAX_CLASSES = 1000
#: Arguments of samplers that are those of ``batch``.
_OF_BATCHES = ("allow_smaller_final_batch", "dynamic_pad", "pad_to_multiple", "pad_to", "ragged")


class Sampling(Bucketing):
    """Stages and shapes that change how often examples come."""

    @checking
    def rejection_sample(
        self,
        accept_prob: Value,
        batch_size: int | None = None,
        enqueue_many: bool = False,
        *,
        seed: int = 0,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        ragged: bool = False,
    ) -> Self:
        """Keep each example with the probability that a column, a function or a number gives.

        A bool counts as 1 or 0.  A number outside 0 … 1 is a DataError.  With ``enqueue_many`` each
        example has a batch dimension, ``accept_prob`` too, and its rows are judged one by one, as
        after ``.unbatch()``.  The arguments after ``seed`` are those of ``batch``.
        """
        pipeline = self.unbatch() if enqueue_many else self
        pipeline = pipeline._with_stage(
            "rejection_sample",
            accept_prob=checked_value("accept_prob", accept_prob, pipeline.fields, constant=(0, 1)),
            seed=seed,
        )
        return pipeline._in_batches(vars())

    @checking
    def stratified_sample(
        self,
        labels: Value,
        target_probs: Sequence[float],
        batch_size: int | None = None,
        init_probs: Sequence[float] | None = None,
        enqueue_many: bool = False,
        *,
        seed: int = 0,
        allow_smaller_final_batch: bool = False,
        dynamic_pad: bool = False,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        ragged: bool = False,
    ) -> Self:
        """Drop examples so that classes come in the proportions of ``target_probs``.

        ``labels`` gives each example's class, 0 … K-1.  ``init_probs`` are the proportions of the
        source; without them they are estimated from the examples so far, including the one at hand.
        As few examples as possible are dropped.  ``batch.label`` holds the classes.  With
        ``enqueue_many`` each example has a batch dimension, ``labels`` too, and its rows are judged
        one by one, as after ``.unbatch()``.  The arguments after ``seed`` are those of ``batch``.
        """
        pipeline = self.unbatch() if enqueue_many else self
        target, init = _mix("target_probs", target_probs), None
        if init_probs is not None:
            acceptance(init_probs, target)  # refuses proportions that can not be reached
            init = probabilities("init_probs", init_probs).tolist()
        pipeline = pipeline._with_stage(
            "stratified_sample",
            labels=checked_value("labels", labels, pipeline.fields, integer=True),
            target_probs=target,
            init_probs=init,
            seed=seed,
        )
        return pipeline._in_batches(vars())

    @checking
    def stratified_sample_unknown_dist(
        self,
        labels: Value,
        probs: Sequence[float],
        batch_size: int,
        enqueue_many: bool = False,
        queue_capacity: int = 16,
        *,
        seed: int = 0,
        dynamic_pad: bool = False,
        max_examples_in_flight: int = 8192,
        pad_to_multiple: int | None = None,
        pad_to: PadTo | None = None,
        ragged: bool = False,
    ) -> Self:
        """Return batches with class counts drawn from ``probs``, for any proportions of the source.

        Rows of a batch are grouped by ascending class; each class is first in, first out.  Examples
        wait in the queue of their class.  One is dropped if its class has ``queue_capacity`` of
        them and all classes together ``max_examples_in_flight``.  With ``enqueue_many`` each
        example has a batch dimension, ``labels`` too, and its rows are judged one by one, as after
        ``.unbatch()``.  ``pad_to_multiple``, ``pad_to`` and ``ragged`` are those of ``batch``.
        """
        given = {**vars(), "allow_smaller_final_batch": False, "probs": _mix("probs", probs)}
        pipeline = self.unbatch() if given.pop("enqueue_many") else self
        given["labels"] = checked_value("labels", labels, pipeline.fields, integer=True)
        return pipeline._with_shape("stratified_sample_unknown_dist", given)

    @checking
    def resample_at_rate(self, rates: Value, *, seed: int | None = None) -> Self:
        """Repeat each example a Poisson number of times, with the mean that ``rates`` gives it.

        Copies follow each other.  A rate that is negative or not finite is a DataError.  No
        ``seed`` is seed 0.
        """
        return self._with_stage("resample_at_rate", rates=rates, seed=0 if seed is None else seed)

    @checking
    def weighted_resample(
        self,
        weights: Value | Sequence[float],
        overall_rate: float,
        mean_decay: float = 0.999,
        warmup: int | None = 10,
        *,
        seed: int | None = None,
        group: int | None = None,
        labels: Value | None = None,
    ) -> Self:
        """Repeat examples in proportion to their weights, ``overall_rate`` times on the average.

        The rate of an example is its weight times ``overall_rate`` over the running mean of
        weights; ``batch.rate`` holds it, so a loss can be weighted by 1 / rate.  The mean moves
        once for every ``group`` examples of the source (default: the batch size, and 32 where a
        budget alone ends batches) and includes them.
        ``warmup`` groups weigh the same before the mean forgets by ``mean_decay``; with
        ``warmup=None`` it forgets from the start and is corrected for that.  No ``seed`` is seed 0.

        With ``labels``, a column or function that gives each example's class, ``weights`` lists the
        weight of each class.
        """
        if warmup is None and mean_decay == 1:
            raise ValueError("mean_decay=1 needs warmup: a mean that never moves is never learnt")
        return self._with_stage(
            "weighted_resample",
            **self._weights(weights, labels),
            overall_rate=overall_rate,
            mean_decay=mean_decay,
            warmup=warmup,
            seed=0 if seed is None else seed,
            group=group,
        )

    def _weights(self, weights: Any, labels: Value | None) -> dict[str, Any]:
        """Return the weights of examples, or those of classes, and the labels."""
        listed = isinstance(weights, (list, tuple)) or np.ndim(weights) == 1
        if labels is None:
            if listed:
                raise ValueError(
                    f"weights={weights!r:.80} lists weights of classes: labels= says of which each "
                    "example is"
                )
            return {"weights": checked_value("weights", weights, self.fields)}
        if not listed:
            raise TypeError(
                f"weights={weights!r:.80} is {kind_of(weights)}; with labels= it is a list "
                "of one weight per class"
            )
        if not 0 < len(weights) <= MAX_CLASSES:
            raise ValueError(f"weights has {len(weights)} classes; 1 to {MAX_CLASSES} can be")
        numbers = [one.item() if isinstance(one, np.generic) else one for one in weights]
        given = [checked_number(f"weights[{i}]", one, 0, math.inf) for i, one in enumerate(numbers)]
        if not any(given):
            raise ValueError("weights are all 0: at least one class is wanted")
        return {
            "labels": checked_value("labels", labels, self.fields, integer=True),
            "class_weights": given,
        }

    def _in_batches(self, given: Mapping[str, Any]) -> Self:
        """Return the pipeline, ended in batches where a sampler's arguments have their size."""
        options = {name: given[name] for name in _OF_BATCHES}
        if given["batch_size"] is not None:
            return self.batch(given["batch_size"], **options)
        for name, value in options.items():
            if value is not None and value is not False:
                raise ValueError(
                    f"{name}={value!r:.80} is an argument of batches: give batch_size, or give it "
                    "to the shape that follows"
                )
        return self


def _mix(argument: str, value: Any) -> list[float]:
    mix: list[float] = probabilities(argument, value).tolist()
    if len(mix) > MAX_CLASSES:
        raise ValueError(f"{argument} has {len(mix)} classes; the most is {MAX_CLASSES}")
    return mix
