"""The order of ``shuffle(blocks=k)``: rows of k blocks at a time are mixed, sliding.

    blocks of a partition, in the order of the epoch     a  b  c  d  e        k = 3
    round 0   all of a, 1/2 of b, 1/3 of c               ────────
    round 1   the rest of b, 1/3 of c, 1/2 of d             ────────
    round 2   the rest of c, of d, and all of e                ────────

A partition has the same blocks in every epoch, chosen at random, so that a copy of them on its host
serves again.  An epoch permutes these blocks, and the rows of each block.  A block is in as many
rounds as it can be, and gives each an equal part of its rows; a round permutes the rows that it
got.  So one block is used up in a round, and one enters in the next.

All of it is computed from the position: a start in the middle reads k blocks, and none before them.
"""

from __future__ import annotations

import numpy as np

from ..shaping import chance
from ..shaping.chance import Permutation


def block_count(size: int, block_bytes: int) -> int:
    """Return how many equal blocks of about ``block_bytes`` so many bytes have."""
    return max(1, (2 * size + block_bytes) // (2 * block_bytes))


def even_blocks(starts: np.ndarray, size: int, block_bytes: int) -> np.ndarray:
    """Return the numbers of the examples with which the blocks of a file of ``size`` bytes begin.

    They are equal parts of it, in which those examples are that start there.
    """
    count = block_count(size, block_bytes)
    cuts = np.array([-(-size * i // count) for i in range(count)], np.int64)
    begins: np.ndarray = np.unique(starts.searchsorted(cuts))
    return begins[begins < len(starts)]


class BlockOrder:
    """The rows of one partition in each epoch; ``starts`` are the first rows of all blocks."""

    def __init__(
        self,
        starts: np.ndarray,
        length: int,
        blocks: int,
        seed: int,
        partition: int,
        partitions: int,
    ) -> None:
        self._seed, self._partition = seed, partition
        low, high = (k * len(starts) // partitions for k in (partition, partition + 1))
        chosen = Permutation(len(starts), chance.derive(seed, chance.BLOCKS), 0)
        own = chosen.at(np.arange(low, high))
        self._firsts, self._sizes = starts[own], np.diff(starts, append=length)[own]
        self.rows = int(self._sizes.sum())
        #: The number of blocks, and how many of them are mixed at a time.
        self.blocks = len(own)
        self.mixed = min(blocks, self.blocks)
        self._epoch = -1  # the epoch of the next three: the blocks in its order, and its rounds
        self._ordered, self._counts = self._firsts, self._sizes
        self._ends = np.empty(0, np.int64)
        # The rows of the last round, in the order of its blocks, and of the blocks in it.
        self._round = -1, np.empty(0, np.int64), Permutation(0, seed, 0)
        self._permuted: dict[int, np.ndarray] = {}

    def at(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the rows at some positions of an epoch."""
        self._begin(epoch)
        found = [np.empty(0, np.int64)]
        number = int(self._ends.searchsorted(start, "right"))
        while start < stop:
            begin = int(self._ends[number - 1]) if number else 0
            end = min(stop, int(self._ends[number]))
            found.append(self._in_round(number, np.arange(start - begin, end - begin)))
            start, number = end, number + 1
        return np.concatenate(found)

    def rows_of(self, epoch: int, place: int) -> slice:
        """Return the rows of the block at a place in the order of an epoch."""
        self._begin(epoch)
        first = int(self._ordered[place])
        return slice(first, first + int(self._counts[place]))

    def entered(self, epoch: int, position: int) -> int:
        """Return how many blocks have entered at a position."""
        self._begin(epoch)
        return int(self._ends.searchsorted(position, "right")) + self.mixed

    def _begin(self, epoch: int) -> None:
        """Prepare the order of the blocks of an epoch."""
        if epoch == self._epoch:
            return
        seed = chance.derive(self._seed, chance.BLOCKS, self._partition)
        order = Permutation(self.blocks, seed, epoch).at(np.arange(self.blocks))
        self._epoch, self._ordered, self._counts = epoch, self._firsts[order], self._sizes[order]
        rounds = np.arange(self.blocks - self.mixed + 1 if self.blocks else 0)
        sizes = np.zeros_like(rounds)
        for i in range(self.mixed):
            low, high = self._parts(rounds, rounds + i)
            sizes += high - low
        self._ends = np.cumsum(sizes)
        self._round = -1, *self._round[1:]
        self._permuted.clear()

    def _parts(
        self, numbers: np.ndarray | int, places: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return from where to where the rows of the blocks at some places are in some rounds."""
        first = np.maximum(places - self.mixed + 1, 0)
        last = np.minimum(places, self.blocks - self.mixed)
        counts, parts, i = self._counts[places], last - first + 1, numbers - first
        return counts * i // parts, counts * (i + 1) // parts

    def _in_round(self, number: int, positions: np.ndarray) -> np.ndarray:
        """Return the rows at some positions of a round."""
        if self._round[0] != number:
            places = np.arange(number, number + self.mixed)
            bounds = zip(places.tolist(), *self._parts(number, places), strict=True)
            parts = [self._rows(place)[low:high] for place, low, high in bounds]
            rows = np.concatenate(parts)
            seed = chance.derive(self._seed, chance.ROUNDS, self._partition, number)
            self._round = number, rows, Permutation(len(rows), seed, self._epoch)
            for place in [place for place in self._permuted if not 0 < place - number < self.mixed]:
                del self._permuted[place]
        _, rows, order = self._round
        drawn: np.ndarray = rows[order.at(positions)]
        return drawn

    def _rows(self, place: int) -> np.ndarray:
        """Return the permuted rows of the block at a place."""
        if place not in self._permuted:
            first, count = int(self._ordered[place]), int(self._counts[place])
            seed = chance.derive(self._seed, chance.BLOCK_ROWS, first)
            order = Permutation(count, seed, self._epoch)
            self._permuted[place] = first + order.at(np.arange(count))
        return self._permuted[place]
