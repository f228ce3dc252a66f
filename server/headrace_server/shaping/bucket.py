"""Rows into buckets, buckets into batches: a whole chunk at once.

    offer(chunk) ─► one queue per bucket ─► batches, in the order in which they became full
    finish()     ─► the remainders of the buckets, ascending bucket id, or dropped

    shuffled by 4     full   0 0 1 1 │ 1 2 2 2     the buckets of 4 batches at a time are put in a
                      out    1 0 1 0 │ 2 2 1 2     drawn order; batches of one bucket keep theirs

Inside a bucket rows keep their order.  A batch becomes full with the row that reaches the bucket's
batch size.  With a budget (``max_padded_elements``) a batch also becomes full when the row arrives
that does not fit: with it, the padded length times the number of rows would exceed the budget.
That row opens the next batch, so a row longer than the budget is a batch of its own.  A row costs
at least one element, whatever its length.  Rows that are not padded (``ragged``) fill a budget with
the sum of their lengths.  At the end of the input, a batch into which no row of any
length would fit counts as full, not as a remainder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import numpy as np

from . import chance
from .plan import Draft, State, balanced
from .row_queue import COST, LENGTH, MAX_COUNTER, ROW, Formed, Fronts, QueuedRows, decoded, waiting

#: Maximum length of an array; rounding up a larger number could exceed 64 bits.
_LONGEST = 2**62
#: Maximum count of a bucket's elements (or costs), so that sums fit 64 bits.
_MOST_COUNTED = 2**53


@dataclass(frozen=True, slots=True)
class Padding:
    """The rules of one shape.

                                         longest of a batch     padded to
        pad_to_multiple=8                13                     16
        pad_to_boundary, bucket … 32     13                     32
        pad_to={"x": 20}                 13                     20, in every batch

    A size of ``pad_to`` is the size of its column.  Otherwise a size is rounded up to a boundary,
    then to a multiple.  The last bucket has no boundary.
    """

    multiple: int = 1
    #: The upper boundary of each bucket but the last.
    boundaries: Sequence[int] = ()
    #: By column: size of each dimension that varies; None: by the other rules.
    sizes: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    #: The fixed size of the column whose length counts in a budget, if any.
    length: int | None = None
    #: By column: the value in place of 0, False or the empty string.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Whether a batch has a mask of the real elements of each column that varies.
    mask: bool = False
    pads: bool = True  # False without any rule

    def padded(self, lengths: np.ndarray, bucket: int) -> np.ndarray:
        """Return the padded length of a bucket's rows with these longest lengths, for a budget."""
        if self.length is not None:
            return np.full_like(lengths, self.length)
        if bucket < len(self.boundaries):
            lengths = np.maximum(lengths, self.boundaries[bucket])
        if self.multiple == 1:
            return lengths
        rounded: np.ndarray = -(-np.minimum(lengths, _LONGEST) // self.multiple) * self.multiple
        return rounded

    def shape(
        self, name: str, dims: Sequence[int | None], largest: Sequence[int], bucket: int
    ) -> list[int]:
        """Return the padded sizes of dimensions that are ``largest`` in a batch.

        ``dims`` that are not None do not vary.
        """
        sizes = self.sizes.get(name, ())
        shape = []
        for i, (dim, size) in enumerate(zip(dims, largest, strict=True)):
            fixed = sizes[i] if i < len(sizes) else None
            if fixed is not None:
                shape.append(fixed)
                continue
            if not i and bucket < len(self.boundaries):
                size = max(size, self.boundaries[bucket])
            shape.append(size if dim is not None else -(-size // self.multiple) * self.multiple)
        return shape


NO_PADDING: Final = Padding(pads=False)


def bucket_of(lengths: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
    """Return the bucket of each length: the number of boundaries that it reaches."""
    return np.searchsorted(boundaries, lengths, side="right")


class Buckets(QueuedRows):
    """Shaper of ``.bucket`` and ``.bucket_by_sequence_length``.

    Facts: ``bucket`` (ids in [0, K)) and, in every chunk or in none, ``length`` (int64, which a
    budget needs).  With lengths, ``padding`` counts by bucket the elements of all batches, padded
    to their longest rows, and the real ones.
    """

    kind = "bucket"

    def __init__(
        self,
        batch_sizes: Sequence[int | None],
        allow_smaller_final_batch: bool = False,
        max_padded_elements: int | None = None,
        padding: Padding = NO_PADDING,
        ragged: bool = False,
        balance_batches: int = 0,
        shuffle_batches: int = 0,
        seed: int = 0,
    ) -> None:
        """``shuffle_batches``: so many formed batches get a drawn order together."""
        count = len(batch_sizes)
        super().__init__(count, batch_sizes)
        self._together, self._seed = shuffle_batches, seed
        self._blocks = 0  # that were put in order
        self._unordered = 0  # the last formed batches, which are not
        self._window = balance_batches
        self._settings = {
            "batch_sizes": list(batch_sizes),
            "max_padded_elements": max_padded_elements,
        }
        if balance_batches:
            self._settings["balance_batches"] = balance_batches
        if shuffle_batches:
            self._settings |= {"shuffle_batches": shuffle_batches, "shuffle_seed": seed}
        self._padding = padding
        self._ragged = ragged
        self._fixed = not allow_smaller_final_batch and max_padded_elements is None
        self.allow_smaller = allow_smaller_final_batch
        self.max_padded_elements = max_padded_elements
        # Few values in a narrow type sort by radix, several times as fast.
        self._narrow = np.min_scalar_type(count - 1) if count <= 2**16 else np.dtype(np.int64)
        self._measure()

    def _measure(self) -> None:
        self._open = self._loose()
        #: By queue: the longest loose row, or the sum of ragged ones; kept only with a budget.
        self._longest = [0] * len(self._open)
        if self.max_padded_elements is not None:
            self._longest = [*map(self._measured, range(len(self._open)))]

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        if not rows:
            return
        counts, order = np.array([rows]), np.arange(rows)
        if len(self._queues) > 1:
            ids = facts["bucket"].astype(self._narrow)
            order = np.argsort(ids, kind="stable")
            counts = np.bincount(ids)
        lengths = facts["length"][order].clip(0, MAX_COUNTER) if "length" in facts else -1
        items = waiting(chunk, order, lengths, facts["cost"][order] if self._window else 0)
        full: list[tuple[int, int, int]] = []  # position of the last row, bucket, number of rows
        start = 0
        for bucket in counts.nonzero()[0].tolist():
            own = items[start : start + int(counts[bucket])]
            start += len(own)
            self._queues[bucket].put(own)
            if self._window:
                full += self._fill_balanced(bucket, own[:, ROW])
            elif self.max_padded_elements is None:
                size = self.batch_sizes[bucket] or 0
                ends = own[size - self._open[bucket] - 1 :: size, ROW].tolist()
                full += [(row, bucket, size) for row in ends]
                self._open[bucket] += len(own) - size * len(ends)
            else:
                full += self._fill_budget(bucket, own[:, ROW], own[:, LENGTH])
        full.sort(key=itemgetter(0))
        for _, bucket, size in full:
            self._form(((bucket, size),))

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use other batch sizes for all loose rows.

        Batches that become full by that come in the order of the buckets, and after all that were
        formed before.
        """
        if self._unordered:
            self._order()
        self.batch_sizes = tuple(batch_sizes)
        for bucket, size in enumerate(batch_sizes):
            if self._window:
                while self._open[bucket] >= size * self._window:
                    self._balance(bucket, self._window)
                    self._form(((bucket, size),), self._window)
                continue
            full, self._open[bucket] = divmod(self._open[bucket], size)
            self._form(((bucket, size),), full)
            if full and self.max_padded_elements is not None:
                self._longest[bucket] = self._measured(bucket)

    def _form(self, rows: Fronts, times: int = 1) -> None:
        if not self._together:
            super()._form(rows, times)
            return
        for _ in range(times):
            self._formed.append(Formed(rows, 1))
            self._unordered += 1
            if self._unordered == self._together:
                self._order()

    def _order(self) -> None:
        """Put the buckets of the unordered batches in a drawn order."""
        block = [self._formed.pop().rows for _ in range(self._unordered)][::-1]
        buckets, order = np.array([rows[0][0] for rows in block]), np.arange(len(block))
        drawn = buckets[chance.bits(self._seed, chance.BATCHES, self._blocks, order).argsort()]
        order[drawn.argsort(kind="stable")] = buckets.argsort(kind="stable")
        for at in order.tolist():
            super()._form(block[at])
        self._blocks, self._unordered = self._blocks + 1, 0

    def next_draft(self) -> Draft | None:
        return super().next_draft() if len(self._formed) > self._unordered else None

    def finish(self, drop: bool = False) -> None:
        super().finish(drop)
        self._unordered *= not drop
        if self._unordered:
            self._order()

    def _fill_balanced(self, bucket: int, rows: np.ndarray) -> list[tuple[int, int, int]]:
        """Find full batches of a bucket: ``balance_batches`` of them become full at a time."""
        size = self.batch_sizes[bucket] or 0
        whole = size * self._window
        ends = rows[whole - self._open[bucket] - 1 :: whole].tolist()
        self._open[bucket] += len(rows)
        for _ in ends:
            self._balance(bucket, self._window)
        return [(row, bucket, size) for row in ends for _ in range(self._window)]

    def _balance(self, bucket: int, batches: int) -> None:
        """Put the oldest loose rows of a bucket into batches that cost nearly the same."""
        loose = self._queues[bucket].last(self._open[bucket])
        count = batches * (self.batch_sizes[bucket] or 0)
        order = balanced(loose.view(np.float64)[:count, COST], batches)
        loose[:count] = loose[order.reshape(-1)]
        self._open[bucket] -= count

    def _fill_budget(
        self, bucket: int, rows: np.ndarray, lengths: np.ndarray
    ) -> list[tuple[int, int, int]]:
        """Find full batches of a bucket under the budget, in a step for each batch."""
        budget = self.max_padded_elements or 0
        size = self.batch_sizes[bucket] or len(rows) + MAX_COUNTER
        held, longest, at = self._open[bucket], self._longest[bucket], 0
        full: list[tuple[int, int, int]] = []
        window = 64  # rows looked at in one step, of the order of a batch
        while at < len(rows):
            room = min(size - held, len(rows) - at)
            look = min(window, room)
            if self._ragged:
                grown = longest + np.cumsum(_costs(lengths[at : at + look], budget))
                too_much = grown > budget
            else:
                # Compared by division: a product could exceed 64 bits.
                grown = np.maximum.accumulate(np.maximum(lengths[at : at + look], max(longest, 1)))
                padded = self._padding.padded(grown, bucket)
                too_much = padded > budget // np.arange(held + 1, held + look + 1)
            if not held:
                too_much[0] = False  # a batch of one row always fits
            misfit = int(too_much.argmax()) if too_much.any() else look
            if misfit:
                held, longest, at = held + misfit, int(grown[misfit - 1]), at + misfit
            if misfit == look and held < size:
                window *= 2
                continue
            full.append((int(rows[at] if misfit < look else rows[at - 1]), bucket, held))
            window = max(64, held)
            held = longest = 0
        self._open[bucket], self._longest[bucket] = held, longest
        return full

    def _form_last(self) -> None:
        for bucket, held in enumerate(self._open):
            if self._window and (full := held // (self.batch_sizes[bucket] or 1)):
                self._balance(bucket, full)
                self._form(((bucket, self.batch_sizes[bucket] or 0),), full)
                held = self._open[bucket]
            if held and (self.allow_smaller or self._fits_no_more(bucket)):
                self._form(((bucket, held),))

    def _fits_no_more(self, bucket: int) -> bool:
        budget = self.max_padded_elements
        if self._ragged:
            return budget is not None and self._longest[bucket] >= budget
        longest = self._padded(max(self._longest[bucket], 1), bucket)
        return budget is not None and longest * (self._open[bucket] + 1) > budget

    def _measured(self, bucket: int) -> int:
        """Return the longest of a bucket's open rows, or the sum of ragged ones."""
        lengths = self._queues[bucket].last(self._open[bucket])[:, LENGTH]
        if not self._ragged:
            return int(lengths.max(initial=0))
        budget = self.max_padded_elements or 0
        return min(int(_costs(lengths, budget).sum()), budget + 1)

    def _padded(self, longest: int, bucket: int) -> int:
        if not self._padding.pads:
            return longest
        return int(self._padding.padded(np.array([longest]), bucket)[0])

    def _is_resized(self, rows: Fronts) -> bool:
        ((bucket, count),) = rows
        return self._fixed and count != self._declared[bucket]

    def _drafted(self, rows: Fronts, items: np.ndarray) -> int:
        ((bucket, count),) = rows
        known = items[:, LENGTH].tolist()
        if (longest := max(known)) >= 0:
            real = sum(known)
            padded = real if self._ragged else self._padded(longest, bucket) * count
            counts = self.padding.setdefault(bucket, [0, 0])
            counts[:] = min(counts[0] + padded, _MOST_COUNTED), min(counts[1] + real, _MOST_COUNTED)
        return bucket

    def snapshot(self) -> State:
        counts = [[bucket, *of_bucket] for bucket, of_bucket in self.padding.items()]
        order = {"blocks": self._blocks, "unordered": self._unordered} if self._together else {}
        return {**super().snapshot(), "padding": counts, **order}

    def restore(self, state: State) -> None:
        (counts,) = self._stored(state, {"padding": list})
        padding = decoded("padding", lambda: {int(b): [int(p), int(r)] for b, p, r in counts})
        blocks, unordered = 0, 0
        if self._together:
            blocks, unordered = self._stored(state, {"blocks": int, "unordered": int})
        super().restore(state)
        if not 0 <= unordered <= len(self._formed):
            raise ValueError(f"the field 'unordered' can not be {unordered}")
        self.padding, self._blocks, self._unordered = padding, blocks, unordered


def _costs(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Return the elements of ragged rows, capped just above the budget to keep their sum exact."""
    costs: np.ndarray = np.clip(lengths, 1, budget + 1).astype(np.uint64)
    return costs


class PlainBatches(Buckets):
    """Shaper of ``.batch(batch_size, allow_smaller_final_batch)``.

    A new batch size applies to the rows that make no whole batch yet.  So a stream depends on the
    place of the change among rows and batches, and not on how many batches were drafted by then.
    """

    kind = "batch"

    def __init__(
        self, batch_size: int, allow_smaller_final_batch: bool = False, balance_batches: int = 0
    ) -> None:
        super().__init__([batch_size], allow_smaller_final_batch, balance_batches=balance_batches)
        del self._settings["batch_sizes"], self._settings["max_padded_elements"]
        self._settings["batch_size"] = batch_size

    def _drafted(self, rows: Fronts, items: np.ndarray) -> int:
        return -1
