"""One partition of a log at work: the ledger, its files, and the feeds that read on.

    append ─► ledger ─► files ─► stored ─► next_event(feed), parts(sequence)

Call ``flush`` after each round of the loop, and when a file's thread wakes it; ``tick`` some fifty
times a second.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from itertools import islice

from ..files.journal_file import HEAD, START, record_bytes
from .ledger import Ledger, LogOptions, View
from .log_files import LogDamaged, LogFiles
from .records import GROUP, NEVER, Close, Entry, Kind, Record, entries

logger = logging.getLogger("headrace.log")

#: Records that are looked at at once where openings are counted: a few milliseconds.
_MOST_COUNTED = 1000


class Log:
    def __init__(self, files: LogFiles, options: LogOptions, now: float) -> None:
        self._files = files
        self.ledger = Ledger(options, now)
        self._restore()

    # Another life

    def _restore(self) -> None:
        numbers, start, place = self._files.numbers(), 0, 0  # of the last whole table
        found: list[tuple[int, int, memoryview]] = []
        for number in reversed(numbers):
            groups = self._files.groups(number)
            tables = [GROUP.unpack_from(data)[-2:] for _, data in groups]
            start, place = max([(start, place), *tables])
            found[:0] = [(number, at, data) for at, data in groups]
            if number == start:
                break
        whole = self._unbroken([one for one in found if one[:2] >= (start, place)])
        self.ledger.restore(whole, set(numbers).__contains__)
        last = whole[-1][0] if whole else 0
        if not (last and self._files.resume(last)):
            self.ledger.next_file(max(numbers, default=0) + 1)

    def _unbroken(
        self, groups: list[tuple[int, int, memoryview]]
    ) -> list[tuple[int, int, memoryview]]:
        """Return the groups up to one that does not follow; LogDamaged if a file was synced."""
        after = None
        for i, (number, _, data) in enumerate(groups):
            first, before, count, *_ = GROUP.unpack_from(data)
            if after not in (None, before + 1):
                fault = f"records {after} to {before} are missing before file {number} of the log"
                if self._files.durable:
                    raise LogDamaged(
                        f"{fault} (a loss of power can leave that where durability was 'process': "
                        "start with that once to go on from the moment before)"
                    )
                logger.warning("%s: it goes on from the moment before", fault)
                for later in self._files.numbers():
                    if later >= number:
                        self._files.delete(later)
                return groups[:i]
            after = first + count
        return groups

    def begin(self) -> None:
        """All feeds and snapshots of this life are attached."""
        for entry in self._again():
            self.ledger.recall(entry)
        self.ledger.attached()
        for number in self._files.numbers():
            if number not in self.ledger.files and number < self.ledger.file:
                self._files.delete(number)

    # At work

    def flush(self) -> None:
        """Write what was appended, and take note of what is stored."""
        for group in self.ledger.take():
            self._files.write(group)
        if stored := self._files.stored():
            self.ledger.stored(stored)

    def tick(self, now: float) -> None:
        self.ledger.tick(now)
        self.flush()
        for number in self.ledger.drops:
            self._files.delete(number)
        self.ledger.drops.clear()

    def next_event(self, name: str, upto: int = NEVER) -> Entry | None:
        """Return the next record for a feed, up to a position; None where it has read all of it
        that is durable.

        It opens a sequence, or it has steps, or it closes one, or all three.  One that closes a
        sequence as LOST is of no file: the feed gets no more of that.
        """
        view = self.ledger.views[name]
        if view.lost:
            lost = Record(Kind.STEPS, Close.LOST, of=view.lost.pop())
            return Entry(view.read, lost, 0, 0, 0)
        if view.walk is None:
            view.walk = self._walk(view)
        while view.read < upto and (entry := next(view.walk)) is not None:
            if self.ledger.read(name, entry):
                return entry
        return None

    def _walk(self, view: View) -> Iterator[Entry | None]:
        """Yield the durable records after those that a view has read, and None where there is none.

        It goes on when more are there.
        """
        ledger, file, place = self.ledger, -1, 0
        while True:
            position = view.read + 1
            if position > ledger.durable:
                yield None
                continue
            if file not in ledger.files or ledger.files[file][1] < position:
                later = (n for n, (_, last) in ledger.files.items() if last >= position)
                file, place = next(later, -1), START + HEAD
                if file < 0:  # a loss of power took all that is left
                    yield None
                    continue
            head = self._files.read(file, place, GROUP.size)
            first, _, count, nbytes, _, _ = GROUP.unpack_from(head)
            if first + count > position:
                for entry in entries(file, place, self._files.read(file, place, nbytes)):
                    if entry.position > view.read:
                        yield entry
            place += record_bytes(nbytes)

    def unread(self, name: str, upto: int) -> int | None:
        """Return how many sequences open up to a position that a feed has not read.

        None: many records are to be looked at, so call it again.
        """
        view = self.ledger.views[name]
        if view.census is None:
            view.census = View(view.read, read=view.read), array("q")
        there, opened = view.census
        there.read = max(there.read, view.read)
        for entry in islice(self._walk(there), _MOST_COUNTED):
            if entry is None or entry.position > upto:
                break
            there.read = entry.position
            if entry.record.kind == Kind.OPENED:
                opened.append(entry.position)
        if there.read < min(upto, self.ledger.durable):
            return None
        return sum(view.read < position <= upto for position in opened)

    def pending(self, seen: int) -> dict[int, int]:
        """Return the sequences that began up to a position and did not end there, for ``attach``.

        All views are attached before, so that it is known which records are to be read again.
        """
        found = self.ledger.pending(seen)
        for entry in self._again(seen):
            if entry.record.kind == Kind.OPENED:
                found[entry.position] = 0
            if entry.record.close:
                found.pop(entry.record.of, None)
        return found

    def _again(self, upto: int = NEVER) -> Iterator[Entry]:
        """Yield the records that are to be read again, up to a position."""
        again = self.ledger.unread
        view = View(again.start - 1, read=again.start - 1)
        for entry in self._walk(view) if again else ():
            if entry is None or entry.position >= min(again.stop, upto + 1):
                break
            view.read = entry.position
            yield entry

    def parts(self, of: int) -> Iterator[memoryview]:
        """Yield the data of a sequence's records, each with the columns of its steps."""
        s = self.ledger.sequences
        for at in s.chain(s.row.get(of)):
            if s.upto[at]:
                yield self.data(at)

    def data(self, extent: int) -> memoryview:
        """Return the columns of the steps of an extent, by its row."""
        s = self.ledger.sequences
        return self._files.read(s.file[extent], s.place[extent], s.nbytes[extent])

    def context(self, of: int) -> memoryview:
        """Return the context of a sequence, empty where it has none."""
        s = self.ledger.sequences
        at = next(s.chain(s.row.get(of)), -1)
        return memoryview(b"") if at < 0 or s.upto[at] else self.data(at)

    def close(self) -> None:
        self.flush()
        self._files.close()
