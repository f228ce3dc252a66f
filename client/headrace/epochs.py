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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .feed_progress import batches_of_loop
from .link import Link
from .session import Received, Session

#: Takes the next batch from a session, or leaves it there; see ``Link.take``.
Claim = Callable[[Session], Received | None]
#: Called while no batch is there, with the sessions of all owners.
NoneYet = Callable[[Sequence[Session]], object]


class EpochEnds(Exception):
    """The next batch of a trainer is of a later epoch than its loop."""


class EpochLoops(ABC):
    """The loops over the epochs of a feed: a part of ``Feed``."""

    _link: Link
    _epochs: Epochs | None  # where batches end with their epoch

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def schema(self) -> Any: ...

    @abstractmethod
    def __next__(self, claim: Claim | None = None, none_yet: NoneYet | None = None) -> Any: ...

    def _within_epochs(self, claim: Claim) -> Claim:
        """Return the claim of ``next(feed)``: it notes the epoch, where batches end with theirs."""
        known = self._link.properties
        if self._epochs is None and known.get("across_batches") is False:
            self._epochs = Epochs(known.get("at_epoch"))
        if self._epochs is None:
            return claim
        self._epochs.take = claim
        return self._epochs.claim

    def __iter__(self) -> Iterator[Any]:
        """Return the batches up to the end of the feed.

        Where the feed is declared with ``repeat(n, across_batches=False)``, those up to the end of
        the epoch.  Another loop has those of the next one.
        """
        _ = self.schema
        epochs = self._epochs
        if epochs is None:
            return self
        self._look_for_epoch(epochs)
        epochs.begin()
        return EpochBatches(self, epochs)

    def __len__(self) -> int:
        """Return how many batches one ``for`` over the feed has in all, from all partitions.

        The loop is an epoch where the feed is declared with ``repeat(n, across_batches=False)``,
        else the whole feed.  Ranks all have the same number.  TypeError with the reason where
        nobody knows it exactly: ``batch`` has a length where the source can be read by number, and
        no stage drops or repeats examples.

        A loop that goes on after a restart or a resumption has fewer, and several trainers without
        ranks share them.
        """
        known = batches_of_loop(self._link.announced)
        if isinstance(known, str):
            raise TypeError(f"feed {self.name!r} has no length: {known}")
        return known

    def __bool__(self) -> bool:
        return True  # whatever its length is

    def epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield the number of each epoch and an iterator that ends with it.

        It needs a feed that is declared with ``repeat(n, across_batches=False)``.  All trainers of
        a feed number its epochs alike: if others got all batches of one, its iterator is empty.
        After a ``break`` the next iterator continues the same epoch.  After a restart or a
        resumption the first one is the rest of the epoch that was under way.

        The end of an iterator commits the last batch of its epoch.  After ``drain`` no epoch
        follows the last one that the server had begun.
        """
        _ = self.schema
        epochs = self._epochs
        if epochs is None:
            raise ValueError(
                f"epochs(): batches of feed {self.name!r} may hold examples of two epochs; declare "
                "it with repeat(n, across_batches=False)"
            )
        return self._each_epoch(epochs)

    def _each_epoch(self, epochs: Epochs) -> Iterator[tuple[int, Iterator[Any]]]:
        while True:
            self._look_for_epoch(epochs)
            if not epochs.begin():
                return
            assert epochs.number is not None
            yield epochs.number, EpochBatches(self, epochs)

    def _next_epoch(self) -> int | None:
        """Return the number of the next loop's epoch; None where batches cross epochs."""
        _ = self.schema
        epochs = self._epochs
        if epochs is None:
            return None
        self._look_for_epoch(epochs)
        return sys.maxsize if epochs.number is None else epochs.number + epochs.over

    @property
    def _last_epoch(self) -> int:
        """The last epoch that any owner began, as they told before their end."""
        return max(session.epoch for session in self._link.sessions)

    def _look_for_epoch(self, epochs: Epochs) -> None:
        """Wait for the next batch where only that shows which epoch comes next."""
        if epochs.in_doubt:
            try:
                self.__next__(epochs.look, epochs.none_yet)
            except EpochEnds:
                return
            except StopIteration:
                epochs.end(self._last_epoch)


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

    def __init__(self, feed: EpochLoops, epochs: Epochs) -> None:
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
