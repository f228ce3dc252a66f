"""One partition's share of a source, in the declared order, from a position of some bytes.

                      no seed            seed                      seed and window
    IndexedSource     slice              permutation of all        permuted windows of the share
    StreamSource      stream by stream   refused                   permuted windows of each stream
    MixedReader       the shares of its sources, each in an order of its own

With a seed and blocks an IndexedSource is read as ``block_order`` says, and a StreamSource as the
IndexedSource that it can be.

The same epoch, position and limit give the same chunk, in any process.  The rows of a partition in
an epoch do not depend on the limits of reads.  Rows that the reader skips make a chunk shorter than
asked, or empty, and the position skips them.

**By number.**  Partition k of P holds positions k*N//P … (k+1)*N//P - 1 of the order.  A position
is an integer, counted from the start of the share.  Windows are blocks of ``window`` positions
from the start of the share; each is permuted by computation, so it costs no memory.

**By stream.**  With at least P streams, partition k reads streams k, k+P, … of the order of
streams, which a seed permutes.  With fewer, every partition reads every stream and keeps the rows
whose ordinal is k modulo P: the source is then read and parsed P times, so as many streams as
partitions are worth having.  A window is ``window`` rows of a stream, held in memory while it is
handed out.  A position is ``[place in the partition's list of streams, the reader's position, rows
of the window handed out]``; with windows the second is that at the start of the window.  A start in
the middle of a window reads the window once more.

Ordinals of streams are made unique over streams: ``stream << 40 | ordinal in the stream``.

**A mix.**  A partition has its share of each source, in the order of that source, and example n of
partition k is example ``n * P + k`` of the mix, by which its source is drawn.  A position is
``[examples that came, by source a place]``; a place is ``[pass over the source, position in its
share, whether this pass has had an example]``, and None after the last pass.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError

from ..files.ranges import REQUEST_BYTES, keep_more, read_at_random
from ..pipeline.declaration import ReadingOrder
from ..shaping import chance
from ..shaping.chance import Permutation
from ..shaping.mix import Schedule, suppliers, times
from ..shaping.plan import Position
from .block_order import BlockOrder
from .chunk import ORDINAL_BITS, BadRecords, Chunk, RowsAtHand
from .columns import Rows, numbers_of
from .source import KEPT_BLOCKS, IndexedSource, MixedReader, StreamSource, read_on

#: Maximum number of rows that are expected ahead; their bytes have a bound of their own.
_AHEAD_ROWS: Final = 16384
#: Bytes of blocks that are fetched before they are mixed: as many as there are requests at once.
_AHEAD_BYTES: Final = 1 << 25
#: Maximum number of rows of a stream read at once to select one partition's rows.
_SIEVED_ROWS: Final = 1024
#: The fact of a mix's rows that the stage ``mix`` takes from them: the pass over their source.
PASS: Final = "pass"
#: Bits of the number of a pass, below those of the mix's epoch: passes of all epochs are ordered.
_PASS_BITS: Final = 32


def partition_reader(
    reader: StreamSource,
    order: ReadingOrder,
    partition: int,
    partitions: int,
    bad: BadRecords | None = None,
) -> NumberedShare | StreamedShare | MixedShare:
    """Return partition ``partition`` of ``partitions`` of a reader.  DataError for an order in
    which the reader can not be read.

    Every epoch begins at ``start``.  ``share`` is the number of its examples, skipped ones
    included; None where only reading shows it.  ``read`` gives at most ``limit`` examples, perhaps
    none, and the position after them; None: the partition's epoch ends with this chunk.
    """
    if order.blocks and (reader := reader.by_number()) is None:  # type: ignore[assignment]
        raise DataError(
            f"shuffle(blocks={order.blocks}) needs a source that can be read by number, and this "
            "one can only be read forward: use shuffle(window=n), or convert it by headrace convert"
        )
    kind: type[NumberedShare | StreamedShare | MixedShare] = MixedShare
    if not isinstance(reader, MixedReader):
        kind = NumberedShare if isinstance(reader, IndexedSource) else StreamedShare
    return kind(reader, order, partition, partitions, bad or BadRecords())


@dataclass(eq=False)
class _Share:
    _reader: Any
    _order: ReadingOrder
    _partition: int
    _partitions: int
    _bad: BadRecords

    def __post_init__(self) -> None:
        """Prepare what its kind needs."""


class NumberedShare(_Share):
    """The share of an IndexedSource."""

    _reader: IndexedSource
    start: Position = 0
    counted_elsewhere = bound = False

    def __post_init__(self) -> None:
        self._n = self._reader.length
        self._first = self._partition * self._n // self._partitions
        self.share = (self._partition + 1) * self._n // self._partitions - self._first
        self.holds = f"{self._n} examples"
        self._blocks: BlockOrder | None = None
        self._far = 0  # stored groups that are read ahead, where the reader tells
        self._entering = KEPT_BLOCKS  # blocks that enter the mix within a read, at most so far
        order = self._order
        if order.blocks and order.block_bytes and order.seed is not None:
            starts = self._reader.blocks(order.block_bytes)
            own = self._partition, self._partitions
            self._blocks = BlockOrder(starts, self._n, order.blocks, order.seed, *own)
            self.share, self.holds = self._blocks.rows, f"{len(starts)} blocks"
            self._far = self._reader.hold(self._blocks.mixed)
            if self._reader.far:  # else a block is dropped before it is used up, and fetched again
                stay = self._blocks.mixed + KEPT_BLOCKS
                keep_more(self, stay * order.block_bytes + _AHEAD_BYTES)
        elif order.seed is not None and order.window is None and self._reader.far:
            read_at_random(self)
        elif order.seed is None:
            self._far = self._reader.hold(0)
        #: Blocks that a window spans, where that is more than one.
        self._window = 0
        if order.window and order.seed is not None and self._n:
            self._window = order.window * len(self._reader.blocks(REQUEST_BYTES)) // self._n
        if self._window:
            self._reader.hold(self._window + 2)  # with the blocks at both ends
        #: Whether what the first rows need is much less than what comes with them.
        self._apart = order.seed is not None and order.window is None
        if self._blocks is not None and order.block_bytes:
            self._apart = self._blocks.mixed * order.block_bytes > _AHEAD_BYTES
        self._last: tuple[tuple[int, int], Permutation] | None = None  # a cache
        # An epoch, and the stretch of it that is expected; or the place of the next block.
        self._ahead = 0, 0, 0

    def read(self, epoch: int, position: Position, limit: int) -> tuple[Chunk, Position | None]:
        if type(position) is not int or not 0 <= position <= self.share:
            raise ValueError(
                f"position {position!r:.80} is none of a share of {self.share} examples"
            )
        stop = min(position + limit, self.share)
        after = stop if stop < self.share else None
        if position == stop:
            return Chunk.empty(self._reader.fields), after
        if self._blocks is not None:
            entering = self._blocks.blocks * limit // self.share + 2
            if entering > self._entering:  # else a read would drop blocks that it needs itself
                self._reader.hold(entering - self._entering)
                self._entering = entering
        rows, hand = self._rows(epoch, position, stop), self._bad.hand
        hand.reading(numbers_of(rows), epoch)
        if self._reader.far or self._blocks is not None or self._window or self._far:
            if self._apart and self._ahead == (0, 0, 0):
                self._reader.expect(numbers_of(rows))
            self._expect(epoch, stop)
        chunk = self._reader.take(rows)
        hand.read(chunk)
        return chunk, after

    def _expect(self, epoch: int, stop: int) -> None:
        """Have examples fetched that come after a position."""
        of, low, high = self._ahead
        if self._blocks is not None:
            self._expect_blocks(self._blocks, epoch if self._order.reshuffle else 0, stop)
            return
        if of != epoch or not low <= stop <= high:
            low = high = stop
        if low + high <= 2 * stop and high < self.share:
            rows = self._rows(epoch, high, min(high + _AHEAD_ROWS, self.share))
            self._ahead = epoch, stop, high + self._reader.expect(numbers_of(rows))

    def _expect_blocks(self, blocks: BlockOrder, epoch: int, position: int) -> None:
        """Have the blocks fetched that are mixed at a position, and some after them."""
        entered = min(blocks.entered(epoch, position), blocks.blocks)
        ahead = max(1, self._far, _AHEAD_BYTES // (self._order.block_bytes or 1))
        low, high = entered - blocks.mixed, min(entered + ahead, blocks.blocks)
        of, asked, _ = self._ahead
        for place in range(asked if of == epoch and low <= asked <= high else low, high):
            rows = numbers_of(blocks.rows_of(epoch, place))
            while len(rows) and (count := self._reader.expect(rows)):
                rows = rows[count:]
            if len(rows):  # enough of them are under way
                high = place
                break
        self._ahead = epoch, high, 0

    def _rows(self, epoch: int, position: int, stop: int) -> Rows:
        """Return the rows of a read, in their order."""
        first, last = self._first + position, self._first + stop
        order = self._order
        if order.seed is None:
            return slice(first, last)
        if not order.reshuffle:
            epoch = 0
        if self._blocks is not None:
            return self._blocks.at(epoch, position, stop)
        if order.window is None:
            return self._permutation(self._n, order.seed, epoch, -1).at(np.arange(first, last))
        return self._windowed(order.seed, order.window, epoch, position, stop)

    def ready(self, epoch: int, position: Position, limit: int) -> int:
        """Return ``limit``: all examples are there."""
        return limit

    def recall(self, epoch: int, position: Position) -> None:
        """Nothing: no rows lie in memory."""

    def release(self, positions: Sequence[Position | None]) -> None:
        """Nothing: such a source stays."""

    def _windowed(self, seed: int, window: int, epoch: int, start: int, stop: int) -> np.ndarray:
        ordinals = np.empty(stop - start, np.int64)
        for begin in range(start - start % window, stop, window):
            size = min(window, self.share - begin)
            low, high = max(start, begin), min(stop, begin + size)
            absolute = self._first + begin
            permuted = self._permutation(size, seed, epoch, absolute)
            ordinals[low - start : high - start] = absolute + permuted.at(
                np.arange(low - begin, high - begin)
            )
        return ordinals

    def _permutation(self, n: int, seed: int, epoch: int, begin: int) -> Permutation:
        """Return the order of all rows (``begin`` -1) or of the window that begins there."""
        if self._last is None or self._last[0] != (epoch, begin):
            if begin >= 0:
                seed = chance.derive(seed, chance.WINDOW, begin)
            self._last = (epoch, begin), Permutation(n, seed, epoch)
        return self._last[1]


class StreamedShare(_Share):
    """The share of a StreamSource."""

    _reader: StreamSource
    start: Position = (0, b"", 0)
    bound: bool  # whether the stream stays with the partition, and is released
    #: Position of a stream in which all was read.
    _END: Final = bytes([0x7F]) * 8

    def __post_init__(self) -> None:
        reader, partition, partitions = self._reader, self._partition, self._partitions
        if self._order.seed is not None and self._order.window is None:
            raise DataError(
                "shuffle() orders all examples, and this source can not be read by number: use "
                "shuffle(window=n), or convert the source to TFRecord or Arrow files"
            )
        _check_streams(reader)
        if reader.bound and reader.streams != partitions:
            raise DataError(
                f"a log of {reader.streams} partitions and a feed of {partitions}: each partition "
                f"of a log is read by that of the feed; give partitions={reader.streams}"
            )
        self.bound = reader.bound
        self._next_row = (0, b""), 0  # a stream and a position in it, and the number of its row
        self._sieved = reader.streams < partitions
        self._places = (
            reader.streams if self._sieved else len(range(partition, reader.streams, partitions))
        )
        self.share = None if reader.streams else 0
        #: Whether another partition counts the bad records, which all of them read.
        self.counted_elsewhere = self._sieved and partition > 0
        self.holds = f"{reader.streams} streams"
        # Rows of the window that was read last, and the reader's position after it.
        self._window: tuple[tuple[int, int, bytes], Chunk, bytes | None] | None = None
        self._streams: tuple[int, np.ndarray] | None = None

    def read(self, epoch: int, position: Position, limit: int) -> tuple[Chunk, Position | None]:
        place = position[0]
        if place == 0 == self._places:
            return Chunk.empty(self._reader.fields), None
        if not 0 <= place < self._places:
            raise ValueError(
                f"position {position!r:.80} is past the last of {self._places} streams"
            )
        chunk, position = self._chunk(epoch, position, limit)
        self._bad.hand.hold(chunk, epoch)
        return chunk, position

    def ready(self, epoch: int, position: Position, limit: int) -> int:
        """Return how many rows a read gives without a wait, at most ``limit``."""
        place, inner, _ = position
        if not 0 <= place < self._places:
            return limit
        turn = epoch if self._order.reshuffle else 0
        stream = self._stream(turn, place)
        if self._order.seed is None:
            rows, each = self._rows_of(limit), self._partitions if self._sieved else 1
            self._note(epoch, stream, inner, rows)  # code of the user runs from here on
            n = self._reader.ready(stream, inner, rows)
            return limit if n == rows else n // each
        window = self._order.window or 1
        if self._window is not None and self._window[0] == (turn, stream, inner):
            return limit
        self._note(epoch, stream, inner, window)
        return limit if self._reader.ready(stream, inner, window) == window else 0

    def recall(self, epoch: int, position: Position) -> None:
        """Hold the window in the middle of which a position is, from here on.

        A source that replays does so now: later other work would wait for it.
        """
        if position[2]:
            self.read(epoch, position, 1)
        elif position[1]:
            self.ready(epoch, position, 0)

    def release(self, positions: Sequence[Position | None]) -> None:
        """Note that a later life reads from these positions on, and nothing before."""
        if self.bound:
            inner = (self._END if at is None else at[1] for at in positions)
            self._reader.release(self._partition, min(inner))

    def _rows_of(self, limit: int) -> int:
        """Return how many rows of a stream are read for at most ``limit`` of this partition."""
        if not self._sieved:
            return limit
        return max(self._partitions, min(limit * self._partitions, _SIEVED_ROWS))

    def _chunk(self, epoch: int, position: Position, limit: int) -> tuple[Chunk, Position | None]:
        """Return the rows of a read, those that are left out included."""
        place, inner, offset = position
        turn = epoch if self._order.reshuffle else 0
        stream = self._stream(turn, place)
        if not inner and not offset and place + 1 < self._places:
            self._reader.expect_stream(self._stream(turn, place + 1))
        if self._order.seed is None:
            rows = self._rows_of(limit)
            self._note(epoch, stream, inner, rows)
            chunk, after = self._reader.read(stream, inner, rows)
            self._noted(chunk, stream, after)
            return numbered(self._own(chunk), stream), self._next(place, after)
        if self.bound and self.ready(epoch, position, limit) < limit:
            return Chunk.empty(self._reader.fields), position
        window, after = self._read_window(self._order.seed, turn, stream, inner)
        if not 0 <= offset <= len(window):
            raise ValueError(f"position {position!r:.80} lies beyond its {len(window)} rows")
        chunk = window.take(slice(offset, offset + limit))
        if offset + limit < len(window):
            return chunk, [place, inner, offset + limit]
        return chunk, self._next(place, after)

    def _own(self, chunk: Chunk) -> Chunk:
        """Return the rows of a stream that are this partition's."""
        if not self._sieved:
            return chunk
        return chunk.take(np.flatnonzero(chunk.ordinals % self._partitions == self._partition))

    def _note(self, epoch: int, stream: int, inner: bytes, rows: int) -> None:
        """Note that a stream is read: the numbers of its next rows where they are known."""
        where = f"{self._bad.hand.source}, stream {stream}"
        numbers = np.array([-1 - stream])
        if not inner or self._next_row[0] == (stream, inner):
            first = self._next_row[1] if inner else 0
            numbers = np.arange(first, first + rows) | (stream << ORDINAL_BITS)
            where += f", after record {first - 1}" if first else ", at its start"
        self._bad.hand.reading(numbers, epoch, where)

    def _noted(self, chunk: Chunk, stream: int, after: bytes | None) -> None:
        if len(chunk) and after is not None:
            self._next_row = (stream, after), int(chunk.ordinals[-1]) + 1

    def _next(self, place: int, after: bytes | None) -> Position | None:
        if after is not None:
            return [place, after, 0]
        return [place + 1, b"", 0] if place + 1 < self._places else None

    def _stream(self, epoch: int, place: int) -> int:
        """Return the number of the stream at a place in this partition's list."""
        if not self._sieved:
            place = self._partition + place * self._partitions
        if self._order.seed is None or self.bound:
            return place
        if self._streams is None or self._streams[0] != epoch:
            seed = chance.derive(self._order.seed, chance.STREAM_ORDER)
            n = self._reader.streams
            self._streams = epoch, Permutation(n, seed, epoch).at(np.arange(n))
        return int(self._streams[1][place])

    def _read_window(
        self, seed: int, epoch: int, stream: int, inner: bytes
    ) -> tuple[Chunk, bytes | None]:
        """Return this partition's rows of the window that begins at ``inner``, in their order."""
        key = (epoch, stream, inner)
        if self._window is not None and self._window[0] == key:
            return self._window[1:]
        self._window = None  # freed before the next is read, so that memory holds one
        rows = self._order.window or 1
        self._note(epoch, stream, inner, rows)
        read, after = read_on(partial(self._reader.read, stream), inner, rows)
        self._noted(read, stream, after)
        chunk = numbered(self._own(read), stream)
        if len(chunk) > 1:
            # Its first row identifies a window: no other window of any partition begins with it.
            seed = chance.derive(seed, chance.WINDOW, int(chunk.ordinals[0]))
            chunk = chunk.take(Permutation(len(chunk), seed, epoch).at(np.arange(len(chunk))))
        self._window = key, chunk, after
        return chunk, after


def _check_streams(reader: StreamSource) -> None:
    if reader.streams >= 1 << (63 - ORDINAL_BITS):
        raise ValueError(f"{reader.streams} streams: at most 2**{63 - ORDINAL_BITS} - 1 can be")


def numbered(chunk: Chunk, stream: int) -> Chunk:
    """Return the chunk with ordinals that are unique over streams."""
    return replace(chunk, ordinals=chunk.ordinals | (stream << ORDINAL_BITS))


#: Place in a source of a mix: its pass, the position there, and whether the pass gave examples;
#: None after its last pass.
Place = Sequence[Any] | None


class MixedShare(_Share):
    """The shares of the sources of a mix, from which examples are drawn.

    A source that has nothing yet holds up the mix: its next example has a place in it.
    """

    _reader: MixedReader
    counted_elsewhere = False
    #: The weights of the sources from here on.
    schedule: Schedule

    def __post_init__(self) -> None:
        reader = self._reader
        _check_streams(reader)
        self._shares: list[NumberedShare | StreamedShare | MixedShare] = [
            partition_reader(one, order, self._partition, self._partitions, self._bad_of(k))
            for k, (one, order) in enumerate(zip(reader.readers, reader.orders, strict=True))
        ]
        self.start: Position = (0, [[0, share.start, False] for share in self._shares])
        self.bound: bool = any(share.bound for share in self._shares)
        self._short: int | None = None  # examples before one that a log lacked in the last read
        self.share: int | None = None if any(one.share != 0 for one in self._shares) else 0
        self.holds: str = ", ".join(
            f"{share.holds} in {name}"
            for name, share in zip(reader.names, self._shares, strict=True)
        )

    def _bad_of(self, k: int) -> BadRecords:
        """Return the rule on bad records for source ``k``, whose rows have ordinals of the mix."""
        hand, first = self._bad.hand, self._reader.starts[k]
        low = first << ORDINAL_BITS
        own = copy.copy(self._bad)  # the counts are those of the mix

        def note(rows: np.ndarray, where: str, epoch: int) -> None:
            hand.reading(np.where(rows < 0, rows - first, rows + low), epoch, where)

        own.hand = RowsAtHand(note, hand.at, f"source {self._reader.names[k]!r}")
        return own

    def read(self, epoch: int, position: Position, limit: int) -> tuple[Chunk, Position | None]:
        came, places = position
        places, count = [*places], len(self._shares)
        found: list[list[Chunk]] = [[] for _ in places]
        have = [0] * count
        live = self._live(places)
        drawn, numbers = self._drawn(epoch, came, limit)
        of = suppliers(drawn, numbers, self.schedule, live)
        while True:
            ends: dict[int, int] = {}  # by example which source has ended before it
            for k in range(count):
                own = np.flatnonzero(of == k)
                if len(own) > have[k]:
                    more, places[k] = self._taken(k, epoch, places[k], len(own) - have[k])
                    found[k] += more
                    have[k] += sum(map(len, more))
                if len(own) > have[k]:
                    ends[int(own[have[k]])] = k
                    if places[k] is not None:  # a log, of which more was wanted when one ended
                        self._short = int(own[have[k]])
                        return self._of_mix(Chunk.empty(self._reader.fields), 0, 0), position
            if not ends:
                break
            at = min(ends)
            if self._reader.stop == "first":
                of[at:] = -1
                break
            live[ends[at]] = False
            of[at:] = suppliers(drawn[at:], numbers[at:], self.schedule, live)
        chunk = self._mixed(epoch, found, of)
        self._bad.hand.read(chunk)
        over = len(chunk) < limit
        return chunk, None if over else [came + limit, places]

    def number(self, came: int) -> int:
        """Return the number in the mix of an example of the partition."""
        return came * self._partitions + self._partition

    def _live(self, places: list[Place]) -> np.ndarray:
        """Return which sources are drawn from: where the first to end ends the mix, all."""
        first = self._reader.stop == "first"
        return np.array([first or place is not None for place in places])

    def _drawn(self, epoch: int, came: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of the next examples, and their numbers in the mix."""
        numbers = np.arange(self.number(came), self.number(came + count), self._partitions)
        return times(self._reader.seed, epoch, numbers, len(self._shares)), numbers

    def _taken(self, k: int, epoch: int, place: Place, count: int) -> tuple[list[Chunk], Place]:
        """Return the next examples of a source, and the place after them.

        They are fewer than ``count`` where the source ends.
        """
        share, chunks = self._shares[k], list[Chunk]()
        while count and place is not None:
            turn, at, some = place
            counts = dict(self._bad.counts)
            chunk, after = share.read(_pass_epoch(epoch, turn), at, count)
            if share.counted_elsewhere:
                self._bad.counts.clear()
                self._bad.counts.update(counts)
            if len(chunk):
                count, some = count - len(chunk), True
                chunks.append(self._of_mix(chunk, k, turn))
            if share.bound and not len(chunk) and after == at:
                break
            if after is not None:
                place = [turn, after, some]
            elif some and self._again(k, turn):
                place = [turn + 1, share.start, False]
            else:  # a pass without an example would be followed by others
                place = None
        return chunks, place

    def _again(self, k: int, turn: int) -> bool:
        """Return whether another pass follows this one."""
        epochs = self._reader.orders[k].epochs
        return self._reader.stop == "never" or epochs is None or turn + 1 < epochs

    def _of_mix(self, chunk: Chunk, k: int, turn: int) -> Chunk:
        """Return examples of a source with the ordinals, the columns and the facts of the mix."""
        rows, low = len(chunk), self._reader.starts[k] << ORDINAL_BITS
        return Chunk(
            {name: chunk.columns[name] for name in self._reader.fields},
            chunk.ordinals + low,
            chunk.origin,
            {"source": np.full(rows, k, np.int32), PASS: np.full(rows, turn, np.int64)},
        )

    def _mixed(self, epoch: int, found: list[list[Chunk]], of: np.ndarray) -> Chunk:
        """Return the examples of all sources, each in its place, and note that they are at hand."""
        parts, places = list[Chunk](), list[np.ndarray]()
        for k, chunks in enumerate(found):
            own = np.flatnonzero(of == k)
            if len(own):
                parts.append(Chunk.join(chunks).take(slice(len(own))))
                places.append(own)
        if not parts:
            return self._of_mix(Chunk.empty(self._reader.fields), 0, 0)
        chunk = Chunk.join(parts).take(np.argsort(np.concatenate(places)))
        self._bad.hand.reading(chunk.ordinals, _pass_epoch(epoch, int(chunk.facts[PASS].max())))
        return chunk

    def ready(self, epoch: int, position: Position, limit: int) -> int:
        """Return how many examples a read gives without a wait, at most ``limit``.

        Where a source ends among them a log may lack more, which the read shows: it gives none.
        """
        came, places = position
        if self._short is not None:
            limit, self._short = min(limit, self._short), None
        drawn, numbers = self._drawn(epoch, came, limit)
        of = suppliers(drawn, numbers, self.schedule, self._live(places))
        for k, place in enumerate(places):
            own = np.flatnonzero(of == k)
            if len(own) and place is not None:
                turn, at, _ = place
                there = self._shares[k].ready(_pass_epoch(epoch, turn), at, len(own))
                if there < len(own):
                    limit = min(limit, int(own[there]))
        return limit

    def recall(self, epoch: int, position: Position) -> None:
        """Hold what the shares of the sources hold at a position."""
        for share, place in zip(self._shares, position[1], strict=True):
            if place is not None:
                share.recall(_pass_epoch(epoch, place[0]), place[1])

    def release(self, positions: Sequence[Position | None]) -> None:
        """Note that a later life reads from these positions on, and nothing before."""
        for k, share in enumerate(self._shares):
            places = [None if at is None else at[1][k] for at in positions]
            share.release([None if place is None else place[1] for place in places])


def _pass_epoch(epoch: int, turn: int) -> int:
    """Return the epoch by which chance and rows at hand know a pass over a source of a mix."""
    return epoch << _PASS_BITS | turn
