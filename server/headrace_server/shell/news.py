"""What one worker is to be told at the end of a round, gathered into few messages.

    Freed, Taken ─────────────► News ─► Settled …              free blocks, how many were taken
    Save, Want, Leave, Flush ─►      ─► Turn … Flush, Turn …   of each partition of segments

The router's round has any number of these, and a message's header is bounded.  What is free or was
taken is told when it is enough to make a worker go on, or has waited for a moment.

A trainer's flush speaks of the batch that it saved last, and of lanes that are still its own: so it
goes out after that save and before anything that followed it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..core import segment_dispatch
from ..core.ahead import bounds
from ..core.handover import Claim, Leave, Release, Save, Want
from .config import FeedConfig, RunConfig
from .worker_messages import Flush, Settled, Turn

__all__ = ["News", "Worth"]

_Name = tuple[str, int, int]
#: Freed blocks, wishes, trainers that left in one message: a trainer's death can free any number.
_PER_MESSAGE = 256
#: Saves in one message …
_SAVES_PER_MESSAGE = 64
#: … and states of all of them: each takes some ten to fifty bytes of the header.
_STATES_PER_MESSAGE = 1024


_ENOUGH = 0.999  # sums of parts round
#: What is not worth a message alone waits this long, and a round of the router.
_PATIENCE_S = 0.05
#: So many bytes that are free are worth a message: they are still warm.
_FREED_BYTES = 4 * 1024**2


class Worth:
    """What a batch of a feed that was taken or is free is worth; 1 is worth a message.

    A worker that is as far ahead as it may be goes on when a quarter of that was taken.  It hears
    of a sixteenth: told of a quarter at once, it got into the way of trainers on few cores.
    """

    def __init__(self, config: FeedConfig, run: RunConfig) -> None:
        most, most_bytes = bounds(
            config.capacity,
            max(1, config.partitions // run.workers),
            run.max_ahead,
            run.max_ahead_bytes,
            run.slab_bytes,
        )
        share = min(most_bytes, run.slab_bytes // (2 * len(run.feeds)))
        self._of_each = 1 / max(1, most // 16)
        self._taken = 1 / max(1, share // 4)
        self._freed = 1 / max(1, min(_FREED_BYTES, run.slab_bytes // 8))

    def taken(self, nbytes: int, crowded: bool) -> float:
        return 1.0 if crowded else max(self._of_each, nbytes * self._taken)

    def freed(self, nbytes: int, crowded: bool) -> float:
        return 1.0 if crowded else max(self._of_each, nbytes * self._freed)


@dataclass(slots=True)
class _Turn:
    """What one partition of segments is to be told, up to a flush."""

    saves: list[tuple[int, Any, bytes | None, int]] = field(default_factory=list)
    wants: dict[int, int] = field(default_factory=dict)  # by stripe
    leaves: list[int] = field(default_factory=list)
    flush: tuple[Flush, bytes] | None = None
    claims: list[list[Any]] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)

    def messages(self, feed: str, partition: int) -> Iterator[tuple[Turn | Flush, list[bytes]]]:
        """In order: states, wishes, trainers that left, the flush."""
        saves = self.saves
        wants = [[upto, stripe] for stripe, upto in self.wants.items()]
        leaves = tuple(self.leaves)
        for i in range(0, len(self.releases), _PER_MESSAGE):
            yield Turn(feed, partition, releases=tuple(self.releases[i : i + _PER_MESSAGE])), []
        for claim in self.claims:  # each may fill a header
            yield Turn(feed, partition, claims=[claim]), []
        most = _SAVES_PER_MESSAGE
        if saves:
            most = max(1, min(most, _STATES_PER_MESSAGE // max(1, len(saves[0][1]))))
        while len(saves) > most:
            told, frames = _framed(saves[:most])
            yield Turn(feed, partition, told), frames
            saves = saves[most:]
        while saves or wants or leaves:
            told, frames = _framed(saves)
            yield Turn(feed, partition, told, wants[:_PER_MESSAGE], leaves[:_PER_MESSAGE]), frames
            saves, wants, leaves = [], wants[_PER_MESSAGE:], leaves[_PER_MESSAGE:]
        if self.flush is not None:
            message, block = self.flush
            yield message, [block]


def _framed(saves: list[tuple[int, Any, bytes | None, int]]) -> tuple[list[list[Any]], list[bytes]]:
    """Saves as a message has them, and the frames that they speak of."""
    told: list[list[Any]] = []
    frames: list[bytes] = []
    for number, columns, block, token in saves:
        if block is None:
            told.append([number, 0, [], token])
        else:
            frames.append(block)
            told.append([number, len(frames), columns, token])
    return told, frames


@dataclass(slots=True)
class News:
    """What one worker is to be told at the end of a round."""

    freed: list[_Name] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)  # of this life so far, by feed
    changed: bool = False  # since it was told
    worth: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of what is free, was taken
    since: float | None = None  # when the first of what is not told came
    turns: dict[tuple[str, int], list[_Turn]] = field(default_factory=dict)

    def add(self, feed: str, effect: Save | Want | Leave | Claim | Release) -> None:
        """Something that a partition of segments is to do."""
        partition = effect.batch.partition if isinstance(effect, Save) else effect.partition
        turns = self.turns.setdefault((feed, partition), [])
        if not turns or turns[-1].flush is not None:
            turns.append(_Turn())
        turn = turns[-1]
        if isinstance(effect, Claim):
            place = effect.place
            turn.claims.append([place.token, place.number, place.segments])
        elif isinstance(effect, Release):
            turn.releases.append(effect.number)
        elif isinstance(effect, Want):
            turn.wants[effect.stripe] = effect.upto
        elif isinstance(effect, Leave):
            turn.leaves.append(effect.stripe)
        elif isinstance(effect, segment_dispatch.Flush):
            turn.flush = effect.payload
        else:
            turn.saves.append((effect.batch.number, *effect.payload, effect.token))

    def take_turns(self) -> Iterator[tuple[Turn | Flush, list[bytes]]]:
        """The messages to partitions of segments, and their frames."""
        for (feed, partition), turns in self.turns.items():
            for turn in turns:
                yield from turn.messages(feed, partition)
        self.turns.clear()

    def free(self, batch: _Name, worth: float = 1.0) -> None:
        """The bytes of a batch are free."""
        self.freed.append(batch)
        self.worth[0] += worth

    def count_taken(self, feed: str, worth: float = 1.0) -> None:
        """A batch has gone to a trainer."""
        self.taken[feed] = self.taken.get(feed, 0) + 1
        self.changed = True
        self.worth[1] += worth

    def take(self) -> Settled | None:
        """The next message; to be asked for until there is none, and again in the next round."""
        if not self.freed and not self.changed:
            return None
        if max(self.worth) < _ENOUGH:
            now = time.monotonic()
            if self.since is None:
                self.since = now
            if now - self.since < _PATIENCE_S:
                return None
        news = Settled(tuple(self.freed[:_PER_MESSAGE]), tuple(self.taken.items()))
        del self.freed[:_PER_MESSAGE]
        self.changed = False
        if not self.freed:
            self.worth[:] = 0.0, 0.0
            self.since = None
        return news
