"""``stratified_sample``: rows dropped so that classes come in given proportions."""

from __future__ import annotations

import logging

import numpy as np

from headrace_proto.schema import Field

from ...pipeline.argument_checks import Selector
from ...shaping.class_acceptance import (
    ClassEstimator,
    Proportions,
    acceptance,
    keep,
    rejected_fraction,
)
from ...shaping.plan import State
from ..chunk import BadRecords, Chunk
from ..row_values import Sampler, below
from ..stage import Fields

logger = logging.getLogger("headrace.data")

#: Number of rows after which an estimate is good enough to report that most are rejected.
_SETTLED = 1000


class StratifiedSample(Sampler):
    """Rows of the classes that its values are, in proportions that a trainer can change."""

    def __init__(
        self,
        labels: Selector,
        target_probs: list[float],
        init_probs: list[float] | None,
        seed: int,
    ) -> None:
        super().__init__("stratified_sample", "labels", labels)
        self._labels, self._seed = labels, seed
        self._target = Proportions("target_probs", target_probs)
        self._init = init_probs
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

    def stats(self) -> dict[str, object]:
        """Return rows accepted and rejected by class, and the first batch of each target."""
        return {
            "accepted": self.accepted.tolist(),
            "rejected": self.rejected.tolist(),
            "changes": [self._target.recent()],
        }

    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        classes = values.astype(np.int64)
        if self._estimator is not None:
            probabilities = self._estimator.accept_estimated(classes, self._target.now)
        else:
            probabilities = acceptance(self._init, self._target.now)[classes]
        accepted = keep(self._seed, self.number, self.epoch, chunk.ordinals, probabilities)
        self._rows += len(chunk)
        self.accepted += np.bincount(classes[accepted], minlength=self.num_classes)
        self.rejected += np.bincount(classes[~accepted], minlength=self.num_classes)
        self._notice()
        own = self._labels[0] == "column" and values.dtype.kind in "iu"
        fact = values if own else classes
        return self.kept(chunk.with_fact("label", fact), accepted, "rejected")

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        kind, name = self._labels
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

    def state(self) -> State:
        return {
            "estimator": self._estimator.snapshot() if self._estimator is not None else None,
            "changes": self._target.to_plain(),
            "rows": self._rows,
            "accepted": self.accepted.tolist(),
            "rejected": self.rejected.tolist(),
            "noticed": self._noticed,
        }

    def restore(self, state: State) -> None:
        if self._estimator is not None:
            self._estimator.restore(state["estimator"])
        self._target.changes = self._target.from_plain(state["changes"])
        self._rows = state["rows"]
        self.accepted = np.array(state["accepted"], np.int64)
        self.rejected = np.array(state["rejected"], np.int64)
        self._noticed = state["noticed"]
