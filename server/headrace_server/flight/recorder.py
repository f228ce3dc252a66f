"""The flight recorder: the rows of every batch, its trainer, and the end of its lease.

    partitions ── Trace of a batch made ──► ┌──────────┐
                                            │ Recorder │ ─► flight-LIFE-….flight
    desk ── effects of one round ─────────► └──────────┘    before they are acted on

A batch is written with the round that hands it out, or when the worker rests: one write for both.
A batch that is expected is written while the worker has nothing to do.

A worker owns the leases of the batches that it makes, and each of its lives has a number of its
own.  The frames of a file:

    [FORMAT, owner, by_number, sessions]    its header
    [BATCH, partition, number, rows, states, lists, sources, parts, segments, meta]
    [ROUND, time, entries]

A batch has as ``sources`` the traces of those of its chunks that are new to the file, and as
``lists`` the lists of source files that are new to it.  A trace has the number of its list.

and the entries of a round:

    [JOINED, session, host, rank, world, nonce]
    [SENT, token, partition, number, rows, session]
    [HELD, token]                      its trainer reported it to a later life
    [fate, text, token, …]             COMMITTED, "stale", "refused", "expired" …

Each file is self-contained: all references of its frames are within it.  A fault is logged once and
stops nothing; after a while a new file is tried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace_proto.messages import Hello

from ..core.dispatch_effects import Answer, Effect, Reclaimed, Returned, Send
from ..core.slots import Segments
from ..process.config import RunConfig
from ..reading.trace import Trace
from .flight_file import FORMAT, FlightFile, frame, packed, packed_rows

logger = logging.getLogger("headrace.flight")

#: Pause after a fault before the next attempt.
_PAUSE_S: Final = 10.0
#: Maximum number of batches that wait for the round that hands them out …
_MOST_WAITING: Final = 16
#: … and of their rows, so that all of them are a small part of ``record_bytes``.
_MOST_ROWS: Final = 4096

BATCH, ROUND = range(2)
JOINED, SENT, HELD, COMMITTED = range(4)

_Entry = list[Any]
#: A batch: its partition, number, rows and trace.
_Made = tuple[int, int, int, Trace]
_Packed = list[Any]


def flight_directory(state: str | Path, feed: str) -> Path:
    """Return where a feed's flight is recorded."""
    return Path(state) / "feeds" / feed / "flight"


class Recorder:
    """Writes the part of one feed's record that is of one life of a worker.

    Two threads use it: one makes batches, while the other may hand them out.
    """

    def __init__(
        self, config: RunConfig, feed: str, owner: int = 0, by_number: bool = True
    ) -> None:
        """``by_number``: a trainer takes batches of several owners in the order of the feed."""
        assert config.state_directory is not None
        directory = flight_directory(config.state_directory, feed)
        name = f"flight-{config.start:010d}"
        self._file = FlightFile(directory, name, config.record_bytes, config.workers)
        self._lock = threading.Lock()  # guards the file, its definitions and the batches made
        self._known: set[tuple[int, int]] = set()  # partition and chunk of sources in the file
        self._lists: dict[tuple[str, ...], int] = {}
        self._feed = feed
        self._header = [FORMAT, owner, by_number]
        #: By partition the number and the trace of the expected batch, which is written.
        self._expected: dict[int, tuple[int, Trace]] = {}
        self._made: list[_Made] = []  # batches that are not written yet …
        self._rows = 0  # … and their rows
        self._trainers: dict[int, list[Any]] = {}
        self._joined: list[_Entry] = []
        self._last_token = 0
        self._entries: dict[type, Callable[[Any], Iterable[_Entry]]] = {
            Send: self._sent,
            Answer: _answered,
            Returned: lambda effect: ([effect.why, "", effect.token],),
            Reclaimed: lambda effect: ([HELD, effect.token],),
        }
        self._logged = False
        self._pause_until = 0.0

    def made(self, partition: int, number: int, rows: int, trace: Trace) -> None:
        """Record a batch that was made, before it is handed out or the worker rests."""
        expected = self._expected.pop(partition, None)
        if expected is not None and expected[0] == number and expected[1] is trace:
            return  # it was written when it was expected
        with self._lock:
            self._made.append((partition, number, rows, trace))
            self._rows += rows
        many = self._rows > _MOST_ROWS or len(self._made) > _MOST_WAITING
        if many or trace.states is not None:
            self._write()

    def expect(self, partition: int, number: int, rows: int, trace: Trace) -> None:
        """Record the batch that will probably be made next, while the worker has nothing to do.

        If another one gets its number, a reader takes the later record.
        """
        with self._lock:
            self._made.append((partition, number, rows, trace))
            self._expected[partition] = number, trace
        self._write()

    def joined(self, session: int, hello: Hello) -> None:
        """Record with the next round that a trainer has a session."""
        trainer = [session, hello.host, hello.rank, hello.world_size, hello.nonce]
        self._trainers[session] = trainer
        self._joined.append([JOINED, *trainer])

    def left(self, session: int) -> None:
        """Forget a session: files that begin from now on do not list it."""
        self._trainers.pop(session, None)

    def note(self, effects: Sequence[Effect]) -> None:
        """Record the effects of one round, which are about to be acted on."""
        entries = self._joined
        for effect in effects:
            entries_of = self._entries.get(type(effect))
            if entries_of is not None:
                entries += entries_of(effect)
        if entries:
            self._joined = []
            self._write([ROUND, time.time(), entries])

    def rest(self) -> None:
        """Write batches that were made since the last round."""
        if self._made:
            self._write()

    def close(self) -> None:
        """Write all that is left, and close the file."""
        self.rest()
        self._file.close()

    def _write(self, *rounds: _Entry) -> None:
        """Write the batches that wait, and then rounds."""
        with self._lock:
            made, self._made, self._rows = self._made, [], 0
            if self._pause_until and time.monotonic() < self._pause_until:
                self._expected.clear()
                return
            try:
                data = self._frames(made, rounds)
                if not self._file.fits(len(data)):
                    self._known.clear()
                    self._lists.clear()
                    data = self._frames(made, rounds)
                    header = frame([*self._header, list(self._trainers.values())])
                    self._file.begin(header, len(data))
                self._file.write(data)
            except Exception as error:
                self._file.close()
                self._expected.clear()
                self._pause_until = time.monotonic() + _PAUSE_S
                if not self._logged:
                    self._logged = True
                    what = f"{type(error).__name__}: {error}"
                    text = "the record of feed %r has gaps (logged once; the feed goes on): %s"
                    logger.error(text, self._feed, what)

    def _frames(self, made: Iterable[_Made], rounds: Iterable[_Entry]) -> bytes:
        return b"".join([self._batch(*batch) for batch in made] + [frame(one) for one in rounds])

    def _batch(self, partition: int, number: int, rows: int, trace: Trace) -> bytes:
        lists, sources = [], {}
        for chunk, source in trace.sources.items():
            if (partition, chunk) not in self._known:
                self._known.add((partition, chunk))
                files = source.origin.files
                if files not in self._lists:
                    self._lists[files] = len(self._lists)
                    lists.append(files)
                listed: Any = self._lists[files]
                origin = replace(source.origin, files=listed)
                sources[chunk] = replace(source, origin=origin)
        batch = trace.segments
        segments = None if batch is None else _packed(batch)
        made = [BATCH, partition, number, rows, trace.states, lists, sources]
        return frame([*made, trace.parts, segments, trace.meta])

    def _sent(self, send: Send) -> Iterable[_Entry]:
        if send.token <= self._last_token:  # it is sent once more
            return ()
        self._last_token = send.token
        batch = send.batch
        return ([SENT, send.token, batch.partition, batch.number, batch.rows, send.session],)


def _packed(batch: Segments) -> _Packed:
    """Return the segments of a batch, without the lines of its examples."""
    return [packed_rows(batch.numbers[1:]), batch.stripe, packed(batch.lanes), packed(batch.starts)]


def _answered(answer: Answer) -> Iterator[_Entry]:
    if answer.committed:
        yield [COMMITTED, "", *answer.committed]
    if answer.stale:
        yield ["stale", "", *answer.stale]
    for token, code, text in answer.faults:
        yield ["refused", f"{code}: {text}", token]
