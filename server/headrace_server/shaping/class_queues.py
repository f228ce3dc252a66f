"""Batches of a wanted mix of classes, when nothing is known of the mix of the input.

    offer(chunk) ─► one queue per class ─► batch n, once every class has the rows it owes to it

The numbers of rows by class in batch n are multinomial(batch_size, probs), drawn by chance keyed by
n. Rows of a batch are grouped by ascending class; each class is first in, first out.  A row that is
not wanted now waits for its turn.  Reading must go on while any class is missing, so two rules
bound the waiting rows of frequent classes:

* A class may always hold ``queue_capacity`` rows, and all that the next batch needs of it: a flood
  of one class neither displaces a rare one nor stops the feed.
* Beyond that a row waits while fewer than ``max_examples_in_flight`` rows do, all classes together,
  and is dropped (counted as ``overflow``) otherwise.  No more rows ever wait between chunks than
  ``max_examples_in_flight + num_classes * queue_capacity + batch_size``.
* Rows of a class of probability 0 would wait for ever: they are dropped as they come (counted as
  ``never_wanted``), and so are those that wait when its probability becomes 0.

A batch is formed with the row that completes it, so nothing depends on how rows are cut into
chunks.  When the input has ended, the batch that lacks rows can never come: that is the end, and
what waits is dropped (counted as ``remainder``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from . import chance
from .class_acceptance import Proportions
from .plan import State
from .row_queue import Fronts, QueuedRows, decoded, waiting


def multinomial(count: int, probs: np.ndarray, seed: int, number: int) -> np.ndarray:
    """Return how many of ``count`` draws fall to each class, in draw ``number`` of this seed."""
    edges = np.cumsum(probs)
    counters = np.arange(number * count, (number + 1) * count)
    drawn = chance.uniform(seed, chance.CLASSES, 0, counters) * edges[-1]
    classes = np.searchsorted(edges, drawn, side="right")
    last = int(np.flatnonzero(probs)[-1])  # a product may round up to the last edge
    return np.bincount(np.minimum(classes, last), minlength=len(probs))


class ClassQueues(QueuedRows):
    """Shaper of ``.stratified_sample_unknown_dist``.  Fact: ``label``, ids in [0, K).

    ``seed`` is that of the partition.
    """

    kind = "classes"

    def __init__(
        self,
        num_classes: int,
        probs: object,
        batch_size: int,
        queue_capacity: int = 16,
        seed: int = 0,
        max_examples_in_flight: int = 65536,
    ) -> None:
        super().__init__(num_classes, [batch_size])
        self._settings = {"num_classes": num_classes, "batch_size": batch_size}
        self.num_classes = num_classes
        self.queue_capacity = queue_capacity
        self.max_examples_in_flight = max_examples_in_flight
        self._seed = chance.derive(seed, chance.CLASSES, 0)
        self.first_not_formed = 0  # number of the next batch to be formed
        self._mix = Proportions("probs", probs)
        self._measure()

    @property
    def batch_size(self) -> int:
        """The size of batches that are not formed yet."""
        return self.batch_sizes[0] or 0

    def _measure(self) -> None:
        self._open = np.array(self._loose(), np.int64)
        self._wanted = self._draw()

    @property
    def probs(self) -> np.ndarray:
        return self._mix.now

    def targets(self) -> Sequence[ClassQueues]:
        return (self,)

    def check_target(self, target_probs: list[float]) -> None:
        """Raise ValueError where another mix can not be used."""
        self._mix.checked(target_probs)

    def set_target(self, target_probs: list[float], number: int) -> int:
        """Use another mix for all unformed batches; ``number``: of the first one."""
        if target_probs != self.probs.tolist():  # else repeated after the worker was replaced
            self.set_probs(target_probs)
        return number

    def stats(self) -> dict[str, object]:
        """Return the waiting rows by class, and first batch and proportions of each mix."""
        held = [queue.count for queue in self._queues]
        return {"waiting": held, "changes": [self._mix.recent()]}

    def set_probs(self, probs: object) -> int:
        """Use another mix from the first unformed batch on; return that batch's number."""
        since = self.first_not_formed
        self._mix.change(probs, since)
        self._wanted = self._draw()
        for label in np.flatnonzero((self.probs == 0) & (self._open > 0)).tolist():
            self._note_dropped("never_wanted", int(self._open[label]))
            self._queues[label].drop(int(self._open[label]))
            self._open[label] = 0
        self._form_all()
        return since

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        self.batch_sizes = tuple(batch_sizes)
        self._wanted = self._draw()
        self._form_all()

    def _form_all(self) -> None:
        while not self._finished and (self._open >= self._wanted).all():
            self._form_next()

    def _draw(self) -> np.ndarray:
        seed = self._seed
        if self.batch_sizes != self._declared:  # draws of different sizes must be independent
            seed = chance.derive(seed, chance.CLASSES, self.batch_size)
        return multinomial(self.batch_size, self.probs, seed, self.first_not_formed)

    def _form_next(self) -> None:
        self._form(tuple((label, n) for label, n in enumerate(self._wanted.tolist()) if n))
        self._open -= self._wanted
        self.first_not_formed += 1
        self._wanted = self._draw()

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        labels = facts["label"].astype(np.int64)
        wanted_rows = np.flatnonzero(self.probs[labels] > 0)
        self._note_dropped("never_wanted", rows - len(wanted_rows))
        labels = labels[wanted_rows]
        order = np.argsort(labels, kind="stable")  # positions grouped by class
        ends = np.cumsum(np.bincount(labels, minlength=self.num_classes))
        # index of the next row, by class
        nexts = ends - np.bincount(labels, minlength=self.num_classes)
        kept = np.ones(len(labels), bool)
        at = 0
        while True:  # one step for each batch: the rows up to the one that completes it
            need = np.maximum(self._wanted - self._open, 0)
            owing = np.flatnonzero(need)
            last = nexts[owing] + need[owing] - 1
            complete = bool((last < ends[owing]).all())
            stop = len(labels)
            if complete:
                stop = max(int(order[last].max()) + 1, at) if owing.size else at
            self._admit(labels, kept, at, stop)
            nexts += np.bincount(labels[at:stop], minlength=self.num_classes)
            if not complete:
                break
            self._form_next()
            at = stop
        own = waiting(chunk, wanted_rows[order[kept[order]]])
        counts = np.bincount(labels[kept], minlength=self.num_classes)
        start = 0
        for label in np.flatnonzero(counts).tolist():
            self._queues[label].put(own[start : start + counts[label]])
            start += int(counts[label])

    def _admit(self, labels: np.ndarray, kept: np.ndarray, start: int, stop: int) -> None:
        """Let rows wait while one batch is gathered; mark in ``kept`` those that find no room."""
        came = labels[start:stop]
        free = max(self.max_examples_in_flight - int(self._open.sum()), 0)
        if len(came) > free:
            places = np.maximum(self.queue_capacity, self._wanted) - self._open
            order = np.argsort(came, kind="stable")
            counts = np.bincount(came, minlength=self.num_classes)
            before = np.empty(len(came), np.int64)  # number of earlier rows of the same class
            before[order] = np.arange(len(came)) - np.repeat(np.cumsum(counts) - counts, counts)
            crowded = before >= places[came]
            crowded[:free] = False
            kept[start:stop] = ~crowded
            self._note_dropped("overflow", int(crowded.sum()))
            came = came[~crowded]
        self._open += np.bincount(came, minlength=self.num_classes)

    def _is_resized(self, rows: Fronts) -> bool:
        return sum(count for _, count in rows) != self._declared[0]

    def waits_for(self) -> str:
        if self._formed or self._finished:
            return "nothing"
        lacking = np.flatnonzero(self._wanted > self._open).tolist()
        named = ", ".join(
            f"class {k} ({self._open[k]} of {self._wanted[k]} rows are here)" for k in lacking[:5]
        )
        more = f" and {len(lacking) - 5} more classes" if len(lacking) > 5 else ""
        return f"batch {self.first_not_formed} waits for {named}{more}"

    def snapshot(self) -> State:
        own = {"number": self.first_not_formed, "changes": self._mix.to_plain()}
        return {**super().snapshot(), **own}

    def restore(self, state: State) -> None:
        """Restore a snapshot, with its mix, which may differ from the declared one."""
        number, changes = self._stored(state, {"number": int, "changes": list})
        known = decoded("changes", lambda: self._mix.from_plain(changes))
        if not known:
            raise ValueError("the field 'changes' is empty; one mix must be in force")
        super().restore(state)
        self.first_not_formed, self._mix.changes = number, known
        self._wanted = self._draw()
