"""The epochs of a feed whose batches end with their epoch, as one trainer goes through them.

    for number, batches in feed.epochs():     0 ……… 1 ……… 2  3 ………      2: others got all of it
    for batch in feed:                          ………   ………      ………      a loop each

A loop ends when the trainer's next batch belongs to a later epoch, or all batches of its own are
committed, or the feed has ended.  The next batch stays where it is, for the loop of its epoch.  A
loop that is left early is continued by the next one.  Where other trainers got
all batches of an epoch, its loop has none, so all trainers number epochs alike.  After ``drain`` no
epoch follows the last one that a server began.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .session import Received, Session

if TYPE_CHECKING:
    from .feed import Feed

#: Takes the next batch from a session, or leaves it there; see ``Link.take``.
Claim = Callable[[Session], Received | None]
#: Called while no batch is there, with the sessions of all owners.
NoneYet = Callable[[Sequence[Session]], object]


class EpochEnds(Exception):
    """The next batch of a trainer is of a later epoch than its loop."""


class Epochs:
    """The epoch that a trainer is in.  Its claims take batches from a session as ``take`` does."""

    def __init__(self, number: int | None = None) -> None:
        """``number``: of the first epoch; None takes it from the first batch."""
        self.number = number
        self.take: Claim = Session.take
        self._entered = False  # whether a loop over this epoch has begun
        self.over = False  # whether it has come to its end
        self._last = sys.maxsize  # the last epoch, once the feed has ended

    def begin(self) -> bool:
        """Begin a loop: over the next epoch, or over what is left of this one.

        Return False where no epoch is left.
        """
        if self.over and self.number is not None:
            if self.number >= self._last:
                return False
            self.number += 1
            self.over = False
        elif self.over:  # the feed has ended before its first batch
            return False
        self._entered = True
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether only the next batch shows which epoch the next loop is over."""
        return self.number is None or (self._entered and not self.over)

    def end(self, last: int = sys.maxsize) -> None:
        """Note that the loop has come to its end; ``last``: the last epoch of an ended feed."""
        self.over, self._last = True, last

    # Claims

    def claim(self, session: Session) -> Received | None:
        """Take the next batch, of any epoch."""
        received = self.take(session)
        if received is not None:
            epoch = received.delivery.epoch
            if self.number is None or epoch > self.number:
                self.number = epoch
            self._entered, self.over, self._last = True, False, sys.maxsize
        return received

    def claim_of_epoch(self, session: Session) -> Received | None:
        """Take the next batch of the loop's epoch; EpochEnds where the next one is of another."""
        if self.is_later(session):
            raise EpochEnds
        return self.claim(session)

    def is_later(self, session: Session) -> bool:
        """Return whether the next batch is there, and of a later epoch than the loop's."""
        return self._head(session) > 0

    def look(self, session: Session) -> None:
        """Take nothing; raise EpochEnds as soon as the next batch is there."""
        ahead = self._head(session)
        if ahead > 0:
            self.end()
        if ahead >= 0:
            raise EpochEnds

    def none_yet(self, sessions: Sequence[Session]) -> None:
        """Raise EpochEnds where every owner has announced that no batch of this epoch will come."""
        begun = min((one.epoch for one in sessions if not one.finished), default=0)
        if self.number is not None and begun > self.number:
            self.end()
            raise EpochEnds

    def _head(self, session: Session) -> int:
        """Return 1 if the next batch belongs to a later epoch, 0 if not, -1 if none is there."""
        if not session.ready or not session.connected:
            return -1
        epoch = session.ready[0].delivery.epoch
        if self.number is None:
            self.number = epoch
        return int(epoch > self.number)


class EpochBatches(Iterator[Any]):
    """The batches of one epoch that a trainer gets."""

    def __init__(self, feed: Feed, epochs: Epochs) -> None:
        self._feed = feed
        self._epochs = epochs
        self._number = epochs.number
        self._over = False

    def __next__(self) -> Any:
        if self._over or self._number not in (None, self._epochs.number):
            raise StopIteration
        try:
            batch = self._feed.__next__(self._epochs.claim_of_epoch, self._epochs.none_yet)
        except EpochEnds:
            self._over = True
            self._epochs.end()
            self._feed._link.say()  # others may wait for the last commit of this epoch
        except StopIteration:
            self._over = True
            self._epochs.end(self._feed._last_epoch)
        else:
            self._number = self._epochs.number
            return batch
        raise StopIteration
