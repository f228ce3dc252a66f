"""Stages that drop or repeat rows by chance: chance is keyed by seed, stage, epoch and ordinal.

    keep                  rows for which a value is true        (keep_input of the buckets)
    rejection_sample      each with a probability
    stratified_sample     so that classes come in given proportions
    resample_at_rate      each a Poisson number of times
    weighted_resample     the same, with rates in proportion to weights

A stage's ``state`` is plain data as of the end of a chunk; with it and the next chunk the
stage does the same again in any process.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..pipeline.declaration import Stage
from ..shaping.class_acceptance import (
    ClassEstimator,
    Proportions,
    acceptance,
    keep,
    rejected_fraction,
)
from ..shaping.row_copies import MAX_RATE, RunningMean, copy_ordinals, poisson, repeat_rows
from .chunk import Chunk
from .reader import BadRecords
from .row_values import Rule, Values, below
from .user_columns import Fields

logger = logging.getLogger("headrace.data")

#: Number of rows after which an estimate is good enough to report that most are rejected.
_SETTLED = 1000


class Sampler(ABC):
    """A stage that keeps the columns: it judges each row by one value."""

    #: The argument that gives the value, and the rule of values.
    argument: str
    rule: Rule
    #: Whether this partition is the one that writes to the log.
    announces = True
    #: The pass over the data that the next chunk belongs to.
    epoch = 0

    def __init__(self, stage: Stage, number: int, counts: Counter[str]) -> None:
        self.number = number  # among the stages: distinguishes samplers of one seed
        self.counts = counts
        self.options = stage.options
        self.seed = int(stage.options.get("seed", 0))
        kept = stage.kind == "keep"
        label = ("bucket", "keep_input") if kept else (stage.kind, self.argument)
        self._values = Values(*label, stage.options[self.argument])

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        """Return the facts of rows that it adds, given the columns that it sees."""
        return {}

    def fields_after(self, before: Fields | None) -> Fields | None:
        return before

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        """Return the remaining rows, or their copies."""
        chunk, values = self._values.sound(chunk, bad, self.rule)
        return self._sampled(chunk, values, bad)

    @abstractmethod
    def _sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        """Return the remaining rows of those with sound values, or their copies."""

    def state(self) -> Any:
        """Return plain data; None for a stage that remembers nothing."""
        return None

    def restore(self, state: Any) -> None:
        """Restore a result of ``state``."""
        return

    def _keep(self, chunk: Chunk, kept: np.ndarray, reason: str) -> Chunk:
        rows = np.flatnonzero(kept)
        if len(rows) == len(chunk):
            return chunk
        self.counts[reason] += len(chunk) - len(rows)
        return chunk.take(rows)


class _Keep(Sampler):
    argument = "keep"
    rule = Rule("it must be true or false", "wrong_type", most=1, whole=True)

    def _sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        return self._keep(chunk, values.astype(bool), "not_kept")


class _Reject(Sampler):
    argument, rule = "accept_prob", Rule("it must lie in 0 … 1", most=1)

    def _sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        probabilities = values.astype(np.float64)
        kept = keep(self.seed, self.number, self.epoch, chunk.ordinals, probabilities)
        return self._keep(chunk, kept, "rejected")


class Stratified(Sampler):
    """``stratified_sample``: counts what it accepts and rejects by class."""

    argument = "labels"

    def __init__(self, stage: Stage, number: int, counts: Counter[str]) -> None:
        super().__init__(stage, number, counts)
        self._target = Proportions("target_probs", stage.options["target_probs"])
        self._init = stage.options["init_probs"]
        self.num_classes = len(self._target.now)
        self.rule = below(self.num_classes, "label_out_of_range")
        self._estimator = None if self._init else ClassEstimator(self.num_classes)
        self._rows = 0
        self.accepted = np.zeros(self.num_classes, np.int64)
        self.rejected = np.zeros(self.num_classes, np.int64)
        self._noticed = False

    def check_target(self, target_probs: list[float]) -> None:
        """Raise ValueError where other proportions can not be used."""
        checked = self._target.checked(target_probs)
        if self._estimator is None:
            acceptance(self._init, checked)

    def set_target(self, target_probs: list[float], number: int) -> int:
        """Use other proportions from the next row on; rows that wait for their batch stay.

        ``number``: of the first batch that the next row can go into.
        """
        if target_probs == self._target.now.tolist():  # asked again, after a worker was replaced
            return number
        self.check_target(target_probs)
        self._target.change(target_probs, number)
        self._noticed = False
        return number

    def stats(self) -> dict[str, Any]:
        """Return rows accepted and rejected by class, and the first batch of each target."""
        return {
            "accepted": self.accepted.tolist(),
            "rejected": self.rejected.tolist(),
            "changes": [self._target.recent()],
        }

    def _sampled(self, chunk: Chunk, labels: np.ndarray, bad: BadRecords) -> Chunk:
        classes = labels.astype(np.int64)
        if self._estimator is not None:
            probabilities = self._estimator.accept_estimated(classes, self._target.now)
        else:
            probabilities = acceptance(self._init, self._target.now)[classes]
        kept = keep(self.seed, self.number, self.epoch, chunk.ordinals, probabilities)
        self._rows += len(chunk)
        self.accepted += np.bincount(classes[kept], minlength=self.num_classes)
        self.rejected += np.bincount(classes[~kept], minlength=self.num_classes)
        self._notice()
        own = self.options["labels"][0] == "column" and labels.dtype.kind in "iu"
        fact = labels if own else classes
        return self._keep(chunk.with_fact("label", fact), kept, "rejected")

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        kind, name = self.options["labels"]
        field = before.get(name) if kind == "column" and before is not None else None
        integers = field is not None and np.dtype(field.dtype).kind in "iu"
        return {"label": Field(field.dtype if field is not None and integers else "int64")}

    def _notice(self) -> None:
        """Log once that half of the source or more is rejected."""
        if self._noticed or not self.announces:
            return
        init = self._init
        if init is None:
            if self._rows < _SETTLED:
                return
            seen = self.accepted + self.rejected + 1  # a class without examples is no fault
            init = seen / seen.sum()
        self._noticed = True
        fraction = rejected_fraction(init, self._target.now)
        if fraction >= 0.5:
            logger.warning(
                "stratified_sample rejects about %.0f %% of the examples to reach target_probs; "
                "the source's own proportions are far from them.  weighted_resample repeats rare "
                "examples instead: weigh each by the target over the share of its class",
                100 * fraction,
            )

    def state(self) -> Any:
        return {
            "estimator": self._estimator.snapshot() if self._estimator is not None else None,
            "changes": self._target.to_plain(),
            "rows": self._rows,
            "accepted": self.accepted.tolist(),
            "rejected": self.rejected.tolist(),
            "noticed": self._noticed,
        }

    def restore(self, state: Any) -> None:
        if self._estimator is not None:
            self._estimator.restore(state["estimator"])
        self._target.changes = self._target.from_plain(state["changes"])
        self._rows = state["rows"]
        self.accepted = np.array(state["accepted"], np.int64)
        self.rejected = np.array(state["rejected"], np.int64)
        self._noticed = state["noticed"]


class _Resample(Sampler):
    """Rows repeated by rates."""

    argument = "rates"
    rule = Rule("a rate is finite, 0 or more, and at most 2**52", most=MAX_RATE)

    def _sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        counts = rates = values.astype(np.float64)
        try:
            counts = poisson(rates, self.seed, self.number, self.epoch, chunk.ordinals)
            rows = repeat_rows(counts)
        except ValueError as error:
            place = chunk.origin.describe(int(counts.argmax()))
            raise DataError(f"{place}: {self._values.label}: {error}") from None
        self.counts["resampled_away"] += int((counts == 0).sum())
        ordinals = copy_ordinals(chunk.ordinals, counts, self.number)
        return replace(chunk.take(rows), ordinals=ordinals)


class _WeightedResample(_Resample):
    argument, rule = "weights", Rule("a weight is finite and 0 or more")

    def __init__(self, stage: Stage, number: int, counts: Counter[str]) -> None:
        listed = stage.options.get("class_weights")
        self._class_weights = None if listed is None else np.array(listed, np.float64)
        if listed is not None:
            self.argument, self.rule = "labels", below(len(listed), "label_out_of_range")
        super().__init__(stage, number, counts)
        options = stage.options
        self._mean = RunningMean(
            options["group"], options["overall_rate"], options["mean_decay"], options["warmup"]
        )

    def _sampled(self, chunk: Chunk, weights: np.ndarray, bad: BadRecords) -> Chunk:
        if not len(chunk):
            return chunk
        if self._class_weights is not None:
            weights = self._class_weights[weights.astype(np.int64)]
        try:
            # A chunk is a group of the source, for any number of rows after earlier stages.
            rates = self._mean.rates(weights)
        except ValueError as error:
            fault = DataError(
                f"{chunk.origin.describe(0)} and those after it: {self._values.label}: {error}"
            )
            bad.report(fault, "zero_weights", len(chunk))
            return chunk.take(slice(0, 0))
        chunk = chunk.with_fact("rate", rates.astype(np.float32))
        return super()._sampled(chunk, rates, bad)

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        return {"rate": Field("float32")}

    def state(self) -> Any:
        return self._mean.snapshot()

    def restore(self, state: Any) -> None:
        self._mean.restore(state)


SAMPLERS: dict[str, type[Sampler]] = {
    "keep": _Keep,
    "rejection_sample": _Reject,
    "stratified_sample": Stratified,
    "resample_at_rate": _Resample,
    "weighted_resample": _WeightedResample,
}
