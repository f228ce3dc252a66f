"""Which batches of a plain feed a trainer has taken, and which of them are committed.

    take 1 ── take 2 ── take 3 ──►   the order of the feed
    on_next:   asking for 2 commits 1; one batch is in hand
    explicit:  commit(2) commits 2 alone; upto(2) commits 1 and 2, and leaves 3 open

A batch is named by its token.  This module sends nothing: methods return the tokens to commit or
to give back.  TensorFlow asks for batches in threads of its own, so all of it is under a lock.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .batch import Batch
from .segments import SegmentBatch

#: Committed batches that are remembered, so that a second commit of one is recognised.
_REMEMBERED = 10_000

_REMEDY = (
    'connect with commit="explicit" and commit each batch when it is trained, by '
    "feed.commit(batch) or, in Keras' fit, by the callback headrace.keras.CommitTrained(feed)"
)


@dataclass(slots=True, eq=False)
class DatasetRun:
    """One iteration over ``as_dataset()``: its batches that are not committed, oldest first."""

    tokens: deque[int] = field(default_factory=deque)
    closed: bool = False


class _Taken(NamedTuple):
    order: int  # counts the batches that this trainer took
    partition: int
    number: int


class TakenBatches:
    """The batches in one trainer's hands, of one session of a feed."""

    def __init__(self, explicit: bool) -> None:
        self.explicit = explicit
        #: Settled tokens that the session has not received; Ctrl-C may come between the two steps.
        self.due: dict[int, None] = {}
        self._lock = threading.Lock()
        self._open: dict[int, _Taken] = {}  # in the order in which they were taken
        self._done: OrderedDict[int, _Taken] = OrderedDict()  # the last that were committed
        self._count = 0
        self._last_done: _Taken | None = None  # the committed batch that was taken last
        self._memory: list[weakref.ref[Any]] = []  # of the batch in hand, and of the one before
        self._runs: list[DatasetRun] = []
        self._warned = False

    def take(self, batch: Batch | SegmentBatch, memory: np.ndarray | None = None) -> None:
        """Note that the trainer has taken a batch.  Its arrays lie in ``memory``."""
        with self._lock:
            self._hold(batch, memory)

    def take_in_turn(self, batches: list[Any], memory: np.ndarray | None = None) -> list[int]:
        """Note that the trainer took these batches in turn; return the tokens that this commits.

        ``memory`` has the arrays of the last batch.
        """
        with self._lock:
            for batch in batches[:-1]:
                self._hold(batch, None)
            before = [] if self.explicit else list(self._open)
            self._hold(batches[-1], memory)
            return self._settle(before)

    def on_next(self) -> list[int]:
        """Return the tokens that asking for another batch commits."""
        return [] if self.explicit else self.in_hand()

    def in_hand(self) -> list[int]:
        """Return all open batches, which count as committed from here on."""
        with self._lock:
            return self._settle(list(self._open))

    def commit(self, tokens: Iterable[int]) -> list[int]:
        """Settle these tokens; return those that were not committed before.

        ValueError, and no change, where a token belongs to no batch that this trainer took.
        """
        with self._lock:
            wanted = list(dict.fromkeys(tokens))
            for token in wanted:
                self._find("commit", token)
            return self._settle([token for token in wanted if token in self._open])

    def for_snapshot(self, upto: Any, feed: Any = None) -> list[int]:
        """Return the tokens that a snapshot commits: all in hand, or those up to one batch."""
        if upto is None:
            return self.on_next()
        tokens = tokens_of("upto", upto, feed)
        if len(tokens) != 1:
            raise ValueError(f"upto={upto!r:.120} are {len(tokens)} batches; name the last one")
        return self._upto(tokens[0])

    def _upto(self, token: int) -> list[int]:
        """Return the open batches up to and including this one.

        ValueError where a batch that was taken later is committed: no snapshot can leave it out.
        """
        with self._lock:
            here, last = self._find("snapshot(upto=…)", token), self._last_done
            if last is not None and last.order > here.order:
                remedy = "" if self.explicit else f" by asking for the next one: {_REMEDY}"
                raise ValueError(
                    f"snapshot(upto=…): batch {last.partition}/{last.number}, taken after "
                    f"{here.partition}/{here.number}, is committed already{remedy}"
                )
            return self._settle([t for t, b in self._open.items() if b.order <= here.order])

    @property
    def tokens(self) -> list[int]:
        """The open batches."""
        with self._lock:
            return list(self._open)

    def give_back(self) -> list[int]:
        """Return all open batches and forget them."""
        with self._lock:
            tokens = list(self._open)
            self._open.clear()
            return tokens

    # as_dataset

    def begin_run(self, run: DatasetRun) -> list[int]:
        """Begin an iteration over a dataset.  With explicit commits, return tokens to give back.

        TensorFlow fetched their batches ahead in earlier iterations, and nobody trained on them.
        """
        with self._lock:
            left = [token for old in self._runs if old.closed for token in old.tokens]
            self._runs = [*(old for old in self._runs if not old.closed), run]
            if not self.explicit:
                return []
            return [token for token in left if self._open.pop(token, None) is not None]

    def fetched(self, run: DatasetRun, token: int) -> None:
        """Note that TensorFlow has fetched a batch in an iteration over a dataset."""
        with self._lock:
            while run.tokens and run.tokens[0] not in self._open:
                run.tokens.popleft()
            run.tokens.append(token)

    def oldest(self, number: int) -> list[int]:
        """Return the oldest open batches of the last iteration over a dataset, to commit them."""
        with self._lock:
            run = self._runs[-1] if self._runs else DatasetRun()
            tokens: list[int] = []
            while run.tokens and len(tokens) < number:
                token = run.tokens.popleft()
                if token in self._open:
                    tokens.append(token)
            return self._settle(tokens)

    # Words

    def doubt(self) -> str:
        """Return, once, why a snapshot may hold untrained batches; empty if it can not.

        There are two signs where asking for the next batch commits: TensorFlow iterates, or the
        memory of the batch before the one in hand is still read.
        """
        with self._lock:
            if self.explicit or self._warned:
                return ""
            if any(not run.closed for run in self._runs):
                why = "TensorFlow fetches batches ahead of the loop that trains on as_dataset()"
            elif len(self._memory) == 2 and self._memory[0]() is not None:
                why = "the batch before the last one is still in use, so the loop may fetch ahead"
            else:
                return ""
            self._warned = True
            return (
                f"snapshot(): {why}, and asking for a batch commits the one before: the snapshot "
                f"may hold batches that are not trained yet.  For exact checkpoints {_REMEDY}; "
                "snapshot(upto=batch) names the last trained one"
            )

    def explain(self, now: float = 0.0) -> str:
        """Name the batches that this trainer has not committed, for the text of a deadline."""
        with self._lock:
            if not self._open:
                return ""
            first = next(iter(self._open.values()))
            count = len(self._open)
        return (
            f".  It has taken {count} of them and committed none of these, the first is batch "
            f'{first.partition}/{first.number}: with commit="explicit" a batch is committed by '
            "feed.commit(batch) or batch.commit(), and by nothing else"
        )

    # Under the lock

    def _hold(self, batch: Batch | SegmentBatch, memory: np.ndarray | None) -> None:
        self._count += 1
        self._open[batch.token] = _Taken(self._count, batch.partition, batch.number)
        if memory is not None and not self.explicit:
            owner = memory.base if isinstance(memory.base, np.ndarray) else memory
            self._memory = [*self._memory[-1:], weakref.ref(owner)]

    def _find(self, what: str, token: int) -> _Taken:
        known = self._open.get(token) or self._done.get(token)
        if known is None:
            raise ValueError(
                f"{what}: token={token} is of no batch that this trainer holds: it was taken in "
                "another session, before the feed was taken back to a snapshot, or was given back"
            )
        return known

    def _settle(self, tokens: list[int]) -> list[int]:
        self.due.update(dict.fromkeys(tokens))
        for token in tokens:
            done = self._done[token] = self._open.pop(token)
            if self._last_done is None or done.order > self._last_done.order:
                self._last_done = done
            if len(self._done) > _REMEMBERED:
                self._done.popitem(last=False)
        return tokens


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
