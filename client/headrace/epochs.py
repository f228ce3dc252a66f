"""Loops over one epoch each, where batches end with their epoch.

for number, batches in feed.epochs(): ┐   the loop ends where the next batch is of a later epoch,
for batch in feed:                    ┘   or where no owner has one of this epoch any more
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .trainer import Held, Trainer

if TYPE_CHECKING:
    from .feed import Feed


class EpochEnds(Exception):
    """The epoch of a loop has no more batches for this trainer."""


class Epochs:
    """The epoch that a trainer's loops are over."""

    def __init__(self, trainer: Trainer, finished: bool) -> None:
        """``finished``: the feed has ended before this trainer joined it."""
        self._trainer = trainer
        self.number = trainer.least
        self.over = finished  # whether the loop has come to its end
        self._entered = False  # whether a loop over this epoch has begun
        self._last = self.number if finished else sys.maxsize  # once the feed has ended

    def begin(self) -> bool:
        """Begin a loop: over the next epoch, or over what is left of this one.

        Return False where no epoch is left.
        """
        if self.over:
            if self.number >= self._last:
                return False
            self.number += 1
            self.over = False
        self._entered = True
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether only the next batch shows which epoch the next loop is over."""
        return self._entered and not self.over

    def end(self, feed_ended: bool = False) -> None:
        """Note that the loop has come to its end."""
        self.over = True
        self._last = self._trainer.latest if feed_ended else sys.maxsize

    def enter(self, held: Held) -> bool:
        """Accept a batch of any epoch."""
        self.number = max(self.number, held.given.turn_epoch)
        self._entered, self.over, self._last = True, False, sys.maxsize
        return True

    def is_later(self, held: Held) -> bool:
        """Return whether a batch is of a later epoch than the loop's."""
        return held.given.turn_epoch > self.number

    def within(self, held: Held) -> bool:
        """Accept a batch of the loop's epoch; EpochEnds where it is of a later one."""
        if self.is_later(held):
            raise EpochEnds
        return self.enter(held)

    def look(self, held: Held) -> bool:
        """Take nothing; raise EpochEnds as soon as the next batch is there."""
        if self.is_later(held):
            self.end()
        raise EpochEnds

    def none_yet(self) -> None:
        """Raise EpochEnds where no batch of this epoch will come, but some of a later one."""
        if self.number < self._trainer.least <= self._trainer.latest:
            self.end()
            raise EpochEnds


class EpochBatches(Iterator[Any]):
    """The batches of one epoch that a trainer gets."""

    def __init__(self, feed: Feed, epochs: Epochs) -> None:
        self._feed = feed
        self._epochs = epochs
        self._number = epochs.number
        self._over = False

    def __next__(self) -> Any:
        if self._over or self._number != self._epochs.number:
            raise StopIteration
        try:
            return self._feed.__next__(self._epochs.within, self._epochs.none_yet)
        except EpochEnds:
            self._epochs.end()
            self._feed._link.say()  # others may wait for the last commit of this epoch
        except StopIteration:
            self._epochs.end(feed_ended=True)
        self._over = True
        raise StopIteration
