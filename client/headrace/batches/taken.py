"""Which batches a trainer has taken, and which of them are committed by name.

    take 1 ── take 2 ── take 3 ──►   the order of the feed
    on_next:   asking for 2 commits 1; one batch is in hand
    explicit:  commit(2) commits 2 alone; upto(2) commits 1 and 2, and leaves 3 open

A batch is named by its token.  Any thread may commit, and TensorFlow asks for batches in threads of
its own; several batches may be in hand.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from headrace_proto.errors import StaleLease

from ..connection.link import Link
from ..connection.session import STALE, named
from ..machine.trainer import Held
from .batch import Batch
from .segments import SegmentBatch

#: Committed batches that are remembered, so that a second commit of one is recognised.
_REMEMBERED = 10_000

_REMEDY = (
    'connect with commit="explicit" and commit each batch when it is trained, by '
    "feed.commit(batch) or, in Keras' fit, by the callback headrace.keras.CommitTrained(feed)"
)


_taken = operator.attrgetter("taken")


@dataclass(slots=True, eq=False)
class DatasetRun:
    """One iteration over ``as_dataset()``."""

    tokens: deque[int] = field(default_factory=deque)  # not committed, oldest first
    closed: bool = False  # TensorFlow has dropped the iterator
    ended: bool = False  # the feed has no more batches for it
    late: Exception | None = None  # an error of a batch, while the ones before it are yielded


class TakenBatches:
    """The batches in one trainer's hands, of one session of a feed without states."""

    kept: bool = False  # whether states stay with the trainer

    def __init__(self, link: Link) -> None:
        self.explicit = link.member.explicit
        self._link = link
        self._lock = link.lock
        self._done: OrderedDict[int, int] = OrderedDict()  # the last committed: their orders
        self._last_done: Held | None = None  # the committed batch that was taken last
        self.runs: list[DatasetRun] = []  # iterations of TensorFlow, in threads of its own
        self._warned = False
        if self.explicit:
            link.waits.explain = self.explain

    def reject(self, held: Held, block: np.ndarray | None, error: BaseException) -> None:
        """Give back a batch that was taken and that an error keeps from the loop."""
        self._link.give_back(held.given.token)

    def on_next(self) -> None:
        """Commit what asking for another batch commits."""
        if not self.explicit:
            self.in_hand()

    def in_hand(self) -> None:
        """Commit all open batches."""
        with self._lock:
            self._settle(self._open())

    def commit(self, batches: Any, feed: Any = None) -> None:
        """Commit these batches, once; None stands for the one in hand.

        ValueError, and no change, where a token belongs to no batch that this trainer took.
        """
        if batches is None and self.explicit:
            raise ValueError(
                'commit(): a feed that was connected with commit="explicit" does not know which of '
                "its batches are trained; name them: feed.commit(batch), or a list"
            )
        if batches is None:
            self.in_hand()
            return
        with self._lock:
            wanted = dict.fromkeys(tokens_of("batches", batches, feed))
            for token in wanted:
                self._order("commit", token)
            self._settle([held for token in wanted if (held := self._shown(token))])

    def for_snapshot(self, upto: Any, feed: Any = None) -> None:
        """Commit what a snapshot commits: all in hand, or the batches up to one.

        ValueError where a batch that was taken later is committed: no snapshot can leave it out.
        """
        if upto is None:
            self.on_next()
            return
        tokens = tokens_of("upto", upto, feed)
        if len(tokens) != 1:
            raise ValueError(f"upto={upto!r:.120} are {len(tokens)} batches; name the last one")
        with self._lock:
            order, last = self._order("snapshot(upto=…)", tokens[0]), self._last_done
            if last is not None and last.taken > order:
                remedy = "" if self.explicit else f" by asking for the next one: {_REMEDY}"
                raise ValueError(
                    f"snapshot(upto=…): {named(last.given)}, taken after token={tokens[0]}, "
                    f"is committed already{remedy}"
                )
            self._settle([held for held in self._open() if held.taken <= order])

    def flush(self, at_most_s: float = inf) -> None:
        """Send states that stay with this trainer, where it has some, to the server."""

    def leave(self, commit: bool) -> None:
        """Commit or return what is open, of a trainer that leaves."""
        if commit:
            self.on_next()
        self.give_back()

    def give_back(self) -> None:
        """Return all open batches."""
        with self._lock:
            for held in self._open():
                self._link.give_back(held.given.token)

    # as_dataset

    def begin_run(self, run: DatasetRun) -> None:
        """Begin an iteration over a dataset where others stopped.

        With explicit commits, batches that TensorFlow fetched ahead in earlier ones go back:
        nobody trained on them.
        """
        with self._lock:
            if self.explicit:
                for token in [token for old in self.runs if old.closed for token in old.tokens]:
                    if self._shown(token):
                        self._link.give_back(token)
            self.runs = [*self._iterating, run]

    @property
    def _iterating(self) -> list[DatasetRun]:
        return [run for run in self.runs if not run.closed]

    def fetched(self, run: DatasetRun, token: int) -> None:
        """Note that TensorFlow has fetched a batch in an iteration over a dataset."""
        with self._lock:
            while run.tokens and not self._shown(run.tokens[0]):
                run.tokens.popleft()
            run.tokens.append(token)

    def oldest(self, number: int) -> None:
        """Commit the oldest open batches of the last iteration over a dataset."""
        with self._lock:
            run = self.runs[-1] if self.runs else DatasetRun()
            oldest: list[Held] = []
            while run.tokens and len(oldest) < number:
                if held := self._shown(run.tokens.popleft()):
                    oldest.append(held)
            self._settle(oldest)

    # Words

    def doubt(self) -> str:
        """Return, once, why a snapshot may hold untrained batches; empty if it can not."""
        with self._lock:
            if self.explicit or self._warned or not self._iterating:
                return ""
            self._warned = True
            return (
                "snapshot(): TensorFlow fetches batches ahead of the loop that trains on "
                "as_dataset(), and asking for a batch commits the one before: the snapshot "
                f"may hold batches that are not trained yet.  For exact checkpoints {_REMEDY}; "
                "snapshot(upto=batch) names the last trained one"
            )

    def explain(self, now: float = 0.0) -> str:
        """Name the batches that this trainer has not committed, for the text of a deadline."""
        with self._lock:
            taken = self._open()
        if not taken:
            return ""
        return (
            f".  It has taken {len(taken)} of them and committed none of these, the first is "
            f'{named(taken[0].given)}: with commit="explicit" a batch is committed by '
            "feed.commit(batch) or batch.commit(), and by nothing else"
        )

    # Under the lock

    def _open(self) -> list[Held]:
        """Return the batches that the loop has, in the order in which it took them."""
        taken = [held for held in self._link.member.trainer.hands.values() if held.shown]
        taken.sort(key=_taken)
        return taken

    def _shown(self, token: int) -> Held | None:
        """Return a batch that the loop has."""
        held = self._link.member.trainer.hands.get(token)
        return held if held is not None and held.shown else None

    def _order(self, what: str, token: int) -> int:
        """Return when a batch was taken, in the order of all; ValueError where it was not."""
        held = self._shown(token)
        order = self._done.get(token) if held is None else held.taken
        if order is None:
            raise ValueError(
                f"{what}: token={token} is of no batch that this trainer holds: it was taken in "
                "another session, before the feed was taken back to a snapshot, or was given back"
            )
        return order

    def _settle(self, batches: list[Held]) -> None:
        for held in batches:
            token = held.given.token
            self._done[token] = held.taken  # Ctrl-C may come after it: a second commit may follow
            if self._last_done is None or held.taken > self._last_done.taken:
                self._last_done = held
            if len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
            if not self._link.commit(token):
                self._link.member.refused.append(StaleLease(f"{named(held.given)} {STALE}"))


def of_replicas(value: Any) -> tuple[Any, ...] | None:
    """Return this process's values in a ``PerReplica`` of TensorFlow; None where it is none."""
    values = getattr(value, "values", None)
    return values if isinstance(values, tuple) else None


def tokens_of(name: str, batches: Any, feed: Any = None) -> list[int]:
    """Return the tokens of one or several batches or tokens of this feed.

    ``name`` is that of the argument, for errors.  Each feed numbers its tokens by itself, so a
    batch of another feed may have a token of this one.
    """
    if isinstance(batches, (Batch, SegmentBatch)):
        if batches._feed is not None and batches._feed() is not feed:
            raise ValueError(
                f"{name}={batches!r:.120}: token={batches.token} is of no batch that this trainer "
                f"holds: it was taken from another feed or by another connection than {feed!r}.  "
                "batch.commit() commits it where it came from"
            )
        return [batches.token]
    if not isinstance(batches, (str, bytes, bool)):
        replicas = of_replicas(batches)
        if replicas is not None:
            batches = list(replicas)
        try:
            return [operator.index(batches)]
        except TypeError:
            pass
        if isinstance(batches, Iterable) and not isinstance(batches, Mapping):
            return [token for one in batches for token in tokens_of(name, one, feed)]
    raise TypeError(
        f"{name}={batches!r:.120} is no batch and no token, which is an integer: give a batch of "
        "this feed, its batch.token, or a list of them"
    )
