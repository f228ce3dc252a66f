"""The ledger of one partition of a log: it takes items, and knows what lives.  It is pure.

    greet, append, leave ─► check ─► record ─► fold ─► take() ── groups, written ──► stored(n)
                                                                                       │
    Welcome, Ack, Denied (of what is durable) ◄── sent ────────────────────────────────┤
    events ◄── read(view, record), of what is durable ◄────────────────────────────────┘

*Position*: the number of a record.  It never changes; its bytes may be carried to another file.
*Sequence*: one opening of a key, named by the position of that record.
*View*: a feed as far as its own journal is stored, or a snapshot of one.

Laws:

1.  A record changes memory at once, by ``fold``, as it does at a restart.  No producer and no feed
    hears of it before it is durable.  A process of a name is known durably before its Welcome, so
    an owner that dies still refuses the older process.
2.  A producer's items are numbered.  A refusal takes a number and a record, and is repeated until
    the producer has it: a lost "no" never becomes a "yes" by a later acknowledgement.
3.  Credit and places are given and never taken back.  A full log gives none, unless all feeds
    starve: what they wait for could only come now.
4.  A sequence stays in memory while it is open, or taken by a view and not done there.  An extent
    stays while a view may need its steps.  A feed that lags reads the log again, and brings back
    the sequences that it finds.
5.  The table of all that lives is written in pieces between appends.  A restart reads one table and
    the records since its first piece, many at once; and before these the records that a feed which
    lagged has read since then.
6.  A file may go when a later table is durable, all views have stored that they are beyond it and
    the table has what they found in it, and no extent lies in it.  The few extents in a file of
    which at most half lives are carried on; nothing refers to the copy before it is durable.

The idle clock of a sequence stands still while the owner was away, and while producers lack credit.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgpack
import numpy as np

from ..files.journal_file import HEAD, START, Buffer, record_bytes
from .records import GROUP, NEVER, RECORD, RECORDS, Close, Copy, Entry, Kind, Record, entries
from .sequences import EXTENT, Sequences
from .words import FREE, RECALLED, Answer, Denied, Extent, Item

#: A view's floor of a sequence: it has not read of it, or needs nothing of it any more.
_UNREAD, _DONE = -1, NEVER
#: A restart takes as long for a record as for so many bytes, about.
_RECORD_COST = 256
#: Backlog is known in steps of so many bytes.
_GRAIN = 64 << 10
#: Extents and bytes that are carried at once, and sequences that end in one tick: some milliseconds
#: each.
_MOST_CARRIED, _MOST_CARRIED_BYTES, _MOST_EXPIRED = 256, 1 << 20, 1000
#: Records that a restart applies at once.
_AT_ONCE = 4096
#: Timeouts are looked at so often in their time.
_LOOKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The limits of one partition of a log; bytes count as on the disk."""

    window: int = 1 << 20  # bytes that a producer may send before the first of them is durable
    most_producers: int = 10_000
    max_open: int = 100_000
    max_backlog: int = NEVER
    retain: int = 0  # bytes to keep though no feed needs them
    idle_timeout_s: float = math.inf
    forget_after_s: float = math.inf  # a silent producer without open sequences
    file_bytes: int = 64 << 20
    piece: int = 4000  # sequences and extents in a piece of the table, about


@dataclass(slots=True, eq=False)
class _Producer:
    id: int  # position of the record with which it joined
    name: str
    birth: int = 0
    last: int = 0  # number of its last item
    heard: int = 0  # up to here it has the answers
    refused: dict[int, str] = field(default_factory=dict)  # beyond ``heard``
    touched: float = 0.0
    durable: int = 0  # number
    # Of its connection.
    connection: int = -1
    places: int = 0  # sequences that it may open …
    wants: int = 0  # … and would
    granted: int = 0  # bytes that it may send in all …
    received: int = 0
    stored: int = 0
    told: Answer | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Records that are written together, as one record of a file."""

    file: int
    place: int
    first: int  # position
    before: int  # the last position before it
    count: int = 0
    nbytes: int = GROUP.size
    parts: list[Buffer | Copy] = field(default_factory=lambda: [b""])
    #: By connection: producer, number of its last item, and the cost of all.
    items: dict[int, tuple[_Producer, int, int]] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)  # connections
    moved: list[tuple[int, Extent]] = field(default_factory=list)  # row of each, as it will lie
    table: tuple[int, int] = (0, 0)  # file and place where the table begins that ends here …
    marks: dict[str, int] | None = None  # … and up to where views had read then


@dataclass(slots=True, eq=False)
class View:
    """A feed as far as its journal is stored, or a snapshot of one, which reads nothing."""

    seen: int  # it has applied all records up to here
    since: int = -1  # some table may lack what it found after this record
    required: bool = True  # whether files wait for it, whatever retention says
    read: int = -1  # position of the last record that it has read; of a snapshot NEVER
    floors: array[int] = field(default_factory=lambda: array("q"))  # by row of the sequence
    pending: dict[int, int] = field(default_factory=dict)  # floors of sequences not found yet
    lost: list[int] = field(default_factory=list)  # sequences that it needs and will not get
    walk: Iterator[Entry | None] | None = None  # the records after ``read``, for the caller
    census: tuple[View, array[int]] | None = None  # as far as openings are counted, and where


class Ledger:
    def __init__(self, options: LogOptions, now: float = 0.0) -> None:
        self.options = options
        self.position = 0  # of the next record
        self.durable = -1  # position of the last durable record
        self.closed = False  # no item will come any more
        self.starving = False  # all feeds wait for steps, says the caller
        self.sent: list[tuple[int, Answer | Denied]] = []  # (connection, message), for the caller
        self.drops: list[int] = []  # files to delete
        self.files: dict[int, tuple[int, int]] = {}  # bytes, position of the last record
        self.views: dict[str, View] = {}
        self.taken = -1  # position up to which retention takes records from optional feeds
        self.sequences = Sequences()
        self._frozen = now  # when idle clocks stood still last: at the start, or for lack of credit
        self._next_look = now
        self._complete = False  # whether all views of this life are attached
        self._restored = NEVER  # position of the first record that ``restore`` applied …
        self._unknown: dict[int, int] = {}  # … and the last one of each sequence that it lacked
        self._producers: dict[int, _Producer] = {}
        self._names: dict[str, _Producer] = {}
        self._connections: dict[int, _Producer] = {}
        self._waiting: deque[int] = deque()  # connections that want to open sequences
        # The end of the log.
        self._group = Group(1, START + HEAD, 0, -1)
        self._full: list[Group] = []  # to be written
        self._unstored: deque[Group] = deque()
        self._total = self._passed = 0  # bytes of all records; of those that all views have seen
        self._spared = 0  # bytes of extents that only optional feeds need, where many are needed
        self._totals: deque[tuple[int, int]] = deque()  # (position, total up to there)
        # Tables and carrying.
        self._table: Iterator[list[bytes]] | None = None  # its pieces, while they are written
        self._table_at = 0, 0  # file and place of the group in which it begins
        self._marks: dict[str, int] = {}  # up to where views had read when …
        self._next_marks: dict[str, int] = {}  # … the last durable table, and the next one, began
        self._durable_table = 0  # file in which that begins
        self._since = 0  # cost of the records since
        self._parts: list[tuple[int, list[bytes]]] = []  # of a long sequence, which lacks others
        self._carrying = False

    # Producers

    def greet(
        self, name: str, birth: int, connection: int, heard: int, now: float, reopens: int = 0
    ) -> None:
        """Let a process send items; ``reopens``: openings that it sends again, with places."""
        p = self._names.get(name)
        before = -1 if p is None or p.connection not in self._connections else p.connection
        denied = ""
        if p is None:
            denied = "forgotten" if heard else ""
        elif birth < p.birth or (birth == p.birth and before > connection):
            denied = "older"
        if not denied and before < 0 and len(self._connections) >= self.options.most_producers:
            denied = "full"
        if denied:
            self._send(connection, Denied(denied))
            return
        self.gone(before)
        if p is None or birth > p.birth:
            of = self.position if p is None else p.id
            key = name.encode()
            self._write(Record(Kind.JOINED, producer=of, version=birth, time=now, key=key))
            p = self._producers[of]
        p.touched, p.connection, p.places, p.told = now, connection, reopens, None
        p.wants = p.granted = p.received = p.stored = 0
        self._on_acknowledged(p, heard)
        self._connections[connection] = p
        if self._group.count:
            self._group.joined.append(connection)
        elif self._unstored:
            self._unstored[-1].joined.append(connection)
        else:
            self._welcome(connection)

    def _welcome(self, connection: int) -> None:
        if (p := self._connections.get(connection)) is not None:
            self._grant(p)
            s = self.sequences
            self._send(
                connection, self._answer(p, {s.keys[r]: s.steps[r] for r in self._open_of(p)})
            )

    def append(
        self, connection: int, items: Iterable[Item], now: float, heard: int = 0, wants: int = 0
    ) -> None:
        """Take items of a producer, in the order of their numbers.

        ``heard``: the number up to which it has the answers; ``wants``: how many sequences it would
        open, had it the places.
        """
        p = self._connections.get(connection)
        if p is None:
            self._send(connection, Denied("greet"))
            return
        p.touched, p.wants = now, wants
        self._on_acknowledged(p, heard)
        if wants > p.places and connection not in self._waiting:
            self._waiting.append(connection)
            self._give_places()
        known = False
        for item in items:
            if item.number <= p.last:
                known = True
                continue
            cost = item.cost
            if item.number != p.last + 1 or p.received + cost > p.granted:
                self.gone(connection)
                self._send(connection, Denied("greet"))
                return
            p.received += cost
            self._take(p, item, now)
            _, _, before = self._group.items.get(connection, (p, 0, 0))
            self._group.items[connection] = p, item.number, before + cost
        if known:
            self._ack(p, again=True)

    def _take(self, p: _Producer, item: Item, now: float) -> None:
        number, key, opens, first, steps, close, version, context, data = item
        s, of = self.sequences, p.id
        row = s.open.get(key, -1)
        if fault := self._fault(p, row, item):
            key = fault.encode()
            self._write(Record(Kind.REFUSED, producer=of, number=number, time=now, key=key))
        elif opens:
            head = (Kind.OPENED, close, len(context), 0, steps, self.position)
            self._write(Record._make((*head, of, number, version, now, key)), context, data)
        else:
            head = (Kind.STEPS, close, 0, first, steps, s.id[row])
            self._write(Record._make((*head, of, number, version, now, b"")), data)

    def _fault(self, p: _Producer, row: int, item: Item) -> str:
        """Return why an item is refused, "" if it is not."""
        if self.closed:
            return "closed"
        if item.opens:
            if row >= 0:
                return "open"
            if not item.close:  # else it needs no place
                if p.places < 1:
                    return "no place"
                p.places -= 1
            return ""
        if row < 0 or self.sequences.owner[row] != p.id:
            return "not open"
        steps = self.sequences.steps[row]
        return "" if item.first == steps else f"step {steps}"

    def leave(self, connection: int) -> None:
        """Forget a name: its process ends in order, and will send nothing again."""
        p = self._connections.get(connection)
        if p is not None and self._forget(p):
            self.gone(connection)

    def _forget(self, p: _Producer) -> bool:
        if p.durable < p.last or self._open_of(p):
            return False
        self._write(Record(Kind.FORGET, producer=p.id))
        return True

    def _open_of(self, p: _Producer) -> list[int]:
        """Return the rows of a producer's open sequences."""
        s = self.sequences
        mine = (np.asarray(s.owner) == p.id) & (np.asarray(s.state) == Close.GOING)
        rows: list[int] = np.flatnonzero(mine).tolist()
        return rows

    def gone(self, connection: int) -> None:
        """End a connection; its producer stays known."""
        self._connections.pop(connection, None)

    def close(self, now: float) -> None:
        """Take no item any more, and end the open sequences."""
        if not self.closed:
            self._write(Record(Kind.CLOSED, time=now))

    @property
    def finished(self) -> bool:
        """Whether the log is closed, and all of it is durable."""
        ended = self.closed and not self.sequences.open
        return ended and self.durable == self.position - 1

    def _on_acknowledged(self, p: _Producer, heard: int) -> None:
        if heard > p.heard:
            p.heard = heard
            if p.refused:
                p.refused = {n: why for n, why in p.refused.items() if n > heard}

    # Credit and places

    @property
    def backlog(self) -> int:
        """Bytes that the slowest view needs, about."""
        return max(self._total - self._passed, self.sequences.living - self._spared)

    @property
    def present(self) -> int:
        """The number of producers that are connected."""
        return len(self._connections)

    @property
    def full(self) -> bool:
        """Whether producers get no further credit."""
        return self.backlog >= self.options.max_backlog and not self.starving

    @property
    def wanting(self) -> int:
        """The number of producers that wait for a place to open a sequence."""
        return len(self._waiting)

    def _grant(self, p: _Producer) -> None:
        if not self.full:
            p.granted = max(p.granted, p.stored + self.options.window)

    def _give_places(self) -> None:
        free = self.options.max_open - len(self.sequences.open)
        free -= sum(p.places for p in self._connections.values())
        given = dict[int, _Producer]()
        while free > 0 and self._waiting:
            p = self._connections.get(self._waiting.popleft())
            if p is not None and p.places < p.wants:
                p.places, free = p.places + 1, free - 1
                given[p.connection] = p
                if p.places < p.wants:
                    self._waiting.append(p.connection)
        for p in given.values():
            self._ack(p)

    def _answer(self, p: _Producer, stands: dict[bytes, int] | None = None) -> Answer:
        refused = tuple(sorted((n, why) for n, why in p.refused.items() if n <= p.durable))
        return Answer(p.durable, refused, p.granted, p.places, stands)

    def _ack(self, p: _Producer, again: bool = False) -> None:
        self._grant(p)
        news = self._answer(p)
        if again or news != p.told:
            p.told = news
            self._send(p.connection, news)

    def _send(self, connection: int, message: Answer | Denied) -> None:
        self.sent.append((connection, message))

    # Records

    def _write(self, record: Record, *data: Buffer | Copy) -> int:
        """Append a record and apply it; return the place of its data."""
        nbytes = 0
        for part in data:
            nbytes += part.nbytes if isinstance(part, Copy) else len(part)
        key = record.key
        size = RECORD.size + len(key) + nbytes
        group = self._group
        if group.place + group.nbytes + size > self.options.file_bytes:
            self._end_group()
            self.next_file(group.file + 1)
            group = self._group
        place = group.place + group.nbytes + size - nbytes
        group.count += 1
        group.nbytes += size
        group.parts += (RECORD.pack(len(key), nbytes, *record[:-1]), key, *data)
        self.position += 1
        self._fold(Entry(self.position - 1, record, group.file, place, nbytes))
        return place

    def _end_group(self) -> None:
        """Have all since the last group written as one, and begin the next one."""
        group = self._group
        if group.count:
            size = group.count, group.nbytes
            group.parts[0] = GROUP.pack(group.first, group.before, *size, *group.table)
            self._full.append(group)
            self._unstored.append(group)
            self._book(group.file, group.place, group.nbytes)
            place = group.place + record_bytes(group.nbytes)
            self._group = Group(group.file, place, self.position, self.position - 1)

    def _book(self, file: int, place: int, nbytes: int) -> None:
        """Count a group."""
        self.files[file] = place + nbytes - START, self.position - 1
        self._total += nbytes
        totals = self._totals
        if len(totals) > 1 and self._total - totals[-2][1] < _GRAIN:
            totals.pop()
        totals.append((self.position - 1, self._total))

    def take(self) -> list[Group]:
        """Return what is to be written, in order, each group as one record of its file."""
        self._end_group()
        full, self._full = self._full, []
        return full

    def stored(self, groups: int) -> None:
        """Note that so many more groups are durable."""
        for _ in range(groups):
            group = self._unstored.popleft()
            self.durable = group.first + group.count - 1
            for connection, (p, number, cost) in group.items.items():
                p.durable = max(p.durable, number)
                if p.connection == connection:
                    p.stored += cost  # of what came, refused or not
            for row, carried in group.moved:
                s = self.sequences
                if s.file[row] < group.file and s.extent(row)[:3] == carried[:3]:
                    s.move(row, group.file, carried.place)
            self._carrying = self._carrying and not group.moved
            if group.marks is not None:
                self._durable_table, self._marks = group.table[0], group.marks
            for connection in group.joined:
                self._welcome(connection)
            for connection in group.items:
                if connection in self._connections:
                    self._ack(self._connections[connection])

    def _fold(self, entry: Entry) -> None:
        """Apply a record, of a producer now or of a file at a restart."""
        record = entry.record
        kind, producer, number = record.kind, record.producer, record.number
        if kind != Kind.TABLE:  # else a long one would have the next one follow at once
            self._since += entry.nbytes + _RECORD_COST
        p = self._producers.get(producer)
        if number and p is not None and number > p.last:
            p.last, p.touched = number, record.time
            if kind == Kind.REFUSED:
                p.refused[number] = record.key.decode()
        if kind <= Kind.STEPS:
            row = self._recall(entry)
            if row < 0:
                return
            s = self.sequences
            if kind == Kind.OPENED:
                s.settle(row, s.state[row] & ~RECALLED)
            if s.state[row]:
                s.settle(row, s.state[row])
                self._sweep(row)
        elif kind == Kind.JOINED:
            if p is None:
                p = self._producers[producer] = _Producer(producer, record.key.decode())
                self._names[p.name] = p
            p.birth, p.touched = max(p.birth, record.version), record.time
        elif kind == Kind.FORGET and p is not None:
            del self._producers[producer], self._names[p.name]
        elif kind == Kind.CLOSED:
            self.closed, self._next_look = True, 0.0

    def _recall(self, entry: Entry) -> int:
        """Enter a record into its sequence, as far as that is news; return its row, or -1.

        A feed that lags does so again as it reads; a restart, for what it read since the table.
        """
        position, record, file, place, nbytes = entry
        s, context, first = self.sequences, record.context, record.first
        made = record.version, record.time
        row = s.row.get(record.of)
        if row < 0:
            if record.kind != Kind.OPENED:
                return -1
            row = self._begin(record.of, record.key, record.producer)
            if context:
                s.add(row, Extent(0, 0, position, file, place, context, *made))
        s.touched[row] = max(s.touched[row], record.time)
        if record.steps and first == s.steps[row]:
            at, upto = place + context, first + record.steps
            s.add(row, Extent(upto, first, position, file, at, nbytes - context, *made))
        if record.close and s.closed_at[row] == NEVER:
            s.state[row] |= record.close
            s.closed_at[row] = position
        return row

    def _begin(self, of: int, key: bytes, owner: int) -> int:
        row = self.sequences.begin(of, key, owner)
        for view in self.views.values():
            floor = view.pending.pop(of, _DONE if of <= view.seen else _UNREAD)
            view.floors[row : row + 1] = array("q", [floor])
        return row

    def _sweep(self, row: int) -> None:
        """Forget the extents that no view needs, and a sequence that ended and is taken by none."""
        if self._complete:
            floors = [view.floors[row] for view in self.views.values()]
            self.sequences.trim(row, max(0, min(floors, default=0)))
            if self.sequences.state[row] and not any(0 <= floor < _DONE for floor in floors):
                self.sequences.drop(row)

    # Views

    def attach(
        self, name: str, seen: int, floors: Mapping[int, int], since: int = -1,
        required: bool = True, reads: bool = True,
    ) -> None:  # fmt: skip
        """Let a feed read on after ``seen``, or a snapshot keep what it needs.

        ``floors``: the first step that it needs of each sequence that is pending there.  ``since``:
        a table may lack what the feed found after that record; it is ``seen`` of a new feed.  Of a
        snapshot it is ``table_of`` the feed, from when it was taken.  A feed that is taken back has
        the ``since`` of the snapshot, and another name than before.
        """
        if seen >= self.position:  # the power failed, and the end of the log was not synced
            self.position, self.durable = seen + 1, seen
            self._group.first = self.position
        view = self.views[name] = View(seen, since, required, seen if reads else NEVER)
        s = self.sequences
        begun = np.asarray(s.id) <= seen
        view.floors.frombytes(np.where(begun, _DONE, _UNREAD).tobytes())
        of = np.fromiter(floors, np.int64, len(floors))
        row, first = s.row.find(of), np.fromiter(floors.values(), np.int64, len(floors))
        np.asarray(view.floors)[row[row >= 0]] = first[row >= 0]
        view.pending = {one: floors[one] for one in of[row < 0].tolist()}
        if self._complete:
            self._miss(view)

    def pending(self, seen: int) -> dict[int, int]:
        """Return the known sequences that began up to a position and did not end there."""
        closed_at = self.sequences.closed_at
        return {of: 0 for of, row in self.sequences.row.items() if of <= seen < closed_at[row]}

    def needs(self, name: str) -> dict[int, int]:
        """Return the first step that a view needs of each sequence that is pending there."""
        floors = self.views[name].floors
        return {
            of: floors[row] for of, row in self.sequences.row.items() if 0 <= floors[row] < _DONE
        }

    @property
    def unread(self) -> range:
        """The positions to ``recall`` at a restart, after all views are attached.

        They end where ``restore`` began, or with the last record of a sequence that it lacked, or
        of which a feed had brought back a part.
        """
        first, s = self._marked() + 1, self.sequences
        last = max((view.seen for view in self.views.values()), default=-1)
        lacks = [
            at
            for of, at in self._unknown.items()
            if (of >= first if (row := s.row.get(of)) < 0 else s.state[row] & RECALLED)
        ]
        return range(first, min(last, max([self._restored - 1, *lacks])) + 1)

    def _marked(self, optional: bool = True) -> int:
        """Return up to where the durable table has all that feeds found.

        Feeds that were taken back since then count, for snapshots may need what they found.
        """
        marks = {name: view.since for name, view in self.views.items()} | self._marks
        left_out = () if optional else [n for n, view in self.views.items() if not view.required]
        return min((mark for name, mark in marks.items() if name not in left_out), default=-1)

    def table_of(self, feed: str) -> int:
        """Return up to where the durable table has what a feed found."""
        return self._marks.get(feed, self.views[feed].since)

    def recall(self, entry: Entry) -> None:
        """Enter a record that a view had read since the table was written."""
        if entry.record.kind <= Kind.STEPS:
            self._recall(entry)

    def attached(self) -> None:
        """Forget what no view needs: all of this life are attached."""
        self._complete = True
        self._unknown.clear()
        for view in self.views.values():
            self._miss(view)
        least = np.full(len(self.sequences.id), 0 if not self.views else NEVER)
        for view in self.views.values():
            np.minimum(least, np.asarray(view.floors), out=least)
        for row in self.sequences.due(least):
            self._sweep(row)

    def _miss(self, view: View) -> None:
        """Note what a view needs and the log has not: a loss of power took it."""
        view.lost += view.pending
        view.pending.clear()
        s = self.sequences
        floors = np.asarray(view.floors)
        lacks = (np.asarray(s.steps) < floors) & (floors < _DONE) & (np.asarray(s.state) != FREE)
        for row in np.flatnonzero(lacks).tolist():
            view.lost.append(s.id[row])
            view.floors[row] = _DONE
            self._sweep(row)

    def detach(self, name: str) -> None:
        del self.views[name]
        self.attached()

    def read(self, name: str, entry: Entry) -> bool:
        """Note that a feed reads a durable record; return whether it is one for this feed."""
        view, record = self.views[name], entry.record
        view.read = entry.position
        if record.kind > Kind.STEPS:
            return False
        living = self.sequences.living
        row = self._recall(entry)
        if self.sequences.living > living:  # a feed that lags has brought it back
            self._since += entry.nbytes + _RECORD_COST
        if row >= 0 and view.floors[row] == _UNREAD:
            view.floors[row] = 0 if record.kind == Kind.OPENED else _DONE
        if row >= 0 and view.floors[row] == _DONE:  # a feed has refused it while it is open
            self._sweep(row)
            return False
        return row >= 0

    def release(self, name: str, seen: int, floors: Mapping[int, int], done: Iterable[int]) -> None:
        """Note that a feed's journal has stored what it needs no longer."""
        view = self.views[name]
        view.seen = max(view.seen, seen)
        for of, floor in (*floors.items(), *((of, _DONE) for of in done)):
            row = self.sequences.row.get(of)
            if row >= 0 and view.floors[row] != _DONE:
                view.floors[row] = floor
                self._sweep(row)

    # Time

    def tick(self, now: float) -> None:
        """Do what is due: end idle sequences, write a piece of the table, carry, forget names."""
        if self.full:
            self._frozen = now
        if now >= self._next_look:
            self._look(now)
        self._tabulate()
        self._tidy()
        self._give_places()
        for p in self._connections.values():
            self._ack(p)

    def expire(self, now: float, idle_s: float) -> int:
        """End sequences without news for so long, a bounded number; return how many."""
        s = self.sequences
        since = np.maximum(np.asarray(s.touched), self._frozen)
        rested = (np.asarray(s.state) == Close.GOING) & (since <= now - idle_s)
        rows = np.flatnonzero(rested)[:_MOST_EXPIRED].tolist()
        for row in rows:
            end = (Kind.STEPS, Close.END, 0, s.steps[row], 0, s.id[row], -1, 0, 0, now, b"idle")
            self._write(Record._make(end))
        return len(rows)

    def resting(self, most: int) -> list[tuple[bytes, str, int, float]]:
        """Return open sequences, those without news for longest first.

        Each has its key, its producer, its steps, and when the last news came.
        """
        s = self.sequences
        going = np.flatnonzero(np.asarray(s.state) == Close.GOING)
        rows: list[int] = going[np.argsort(np.asarray(s.touched)[going])[:most]].tolist()
        return [
            (s.keys[row], self._producers[s.owner[row]].name, s.steps[row], s.touched[row])
            for row in rows
        ]

    def _look(self, now: float) -> None:
        silent = self.options.forget_after_s
        idle_s = -math.inf if self.closed else self.options.idle_timeout_s
        more = self.expire(now, idle_s) == _MOST_EXPIRED
        self._next_look = now if more else now + min(self.options.idle_timeout_s, silent) / _LOOKS
        if now - self._frozen > silent:
            for p in list(self._producers.values()):
                if p.connection not in self._connections and now - p.touched > silent:
                    self._forget(p)

    # The table

    def _tabulate(self) -> None:
        """Write a piece of the table, or begin one where as much came since the last one."""
        begins = self._table is None
        if self._table is None:
            lives = len(self.sequences.row) + len(self._producers)
            due = max(self.options.file_bytes, 2 * _RECORD_COST * lives)
            if self._carrying or self._since < due:
                return
            self._end_group()
            self._table, self._since = self._pieces(), 0
            self._next_marks = {name: view.read for name, view in self.views.items()}
        piece = next(self._table, None)
        last = Close.END if piece is None else Close.GOING
        for part in piece or [b""]:  # nothing comes between the parts of a sequence
            self._write(Record(Kind.TABLE, last, first=int(begins)), part)
        if begins:
            self._table_at = self._group.file, self._group.place
        if piece is None:
            self._group.table, self._group.marks = self._table_at, self._next_marks
            self._table = None

    def _pieces(self) -> Iterator[list[bytes]]:
        """Yield the pieces: one record each, or several with the extents of a long sequence."""
        producers = [
            (p.id, p.name, p.birth, p.last, p.heard, p.refused, p.touched)
            for p in self._producers.values()
        ]
        yield [msgpack.packb((producers, self.files, self._next_marks, self.closed))]
        s, most = self.sequences, self.options.piece
        rows, chains, size = list[int](), list[list[int]](), 0
        for of in array("q", s.row):
            if (row := s.row.get(of)) >= 0:
                rows.append(row)
                chains.append([*s.chain(row)])
                size += 1 + len(chains[-1])
                if size >= most:  # what follows is looked at when the log has gone on
                    yield self._packed(rows, chains)
                    rows, chains, size = [], [], 0
        yield self._packed(rows, chains)

    def _packed(self, rows: list[int], chains: list[list[int]]) -> list[bytes]:
        """Return a piece; of its last sequence, which may be long, some extents in each part."""
        s, most, packed = self.sequences, self.options.piece, list[bytes]()
        if chains and len(chains[-1]) > most:
            *before, long = chains
            parts = [long[at : at + most] for at in range(0, len(long), most)]
            after = range(len(parts) - 1, -1, -1)
            if before:
                packed.append(msgpack.packb((*s.packed(rows[:-1], before), 0)))
            for part, n in zip(parts, after, strict=True):
                packed.append(msgpack.packb((*s.packed(rows[-1:], [part]), n)))
            return packed
        return [msgpack.packb((*s.packed(rows, chains), 0))]

    def _enter(self, first: int, data: memoryview, there: Callable[[int], bool]) -> None:
        """Enter the sequences of a piece of the table that are not known.

        All records of the others since they began, or since an earlier table had them, have come.
        A long sequence is entered with its last part: a crash may have left it without that.
        """
        found = msgpack.unpackb(data, strict_map_key=False)
        if first:
            producers, files, self._next_marks, self.closed = found
            for values in producers:
                self._producers[values[0]] = self._names[values[1]] = _Producer(*values)
            self.files |= {file: tuple(book) for file, book in files.items() if there(file)}
            return
        s, (keys, columns, after) = self.sequences, found
        if self._parts and (self._parts[-1][0], self._parts[0][1][1]) != (after + 1, columns[1]):
            self._parts.clear()
        if after or self._parts:
            self._parts.append((after, columns))
        if after:
            return
        if self._parts:
            columns = s.joined([part for _, part in self._parts])
            self._parts.clear()
        s.enter(*s.unknown(keys, columns))

    # Room

    def _seen(self, optional: bool = True) -> int:
        """Return up to where all views are, and the durable table has what they found."""
        seen = [view.seen for view in self.views.values() if view.required or optional]
        return min(*seen, self._marked(optional)) if seen else -1 if optional else self.durable

    def _tidy(self) -> None:
        """Name files that nothing needs, and carry what lives in one where little does."""
        kept = sum(used for used, _ in self.files.values())
        limit = min(self._durable_table, self._group.file)
        if not all(view.required for view in self.views.values()):
            self._find_taken(kept, limit)
        least = min((view.seen for view in self.views.values()), default=-1)
        while self._totals and self._totals[0][0] <= least:
            self._passed = self._totals.popleft()[1]
        seen, live = self._seen(), self.sequences.live
        for file, (used, newest) in list(self.files.items()):
            if kept <= self.options.retain or file >= limit or newest > seen:
                return
            kept -= used
            if not live.get(file):
                self.drops.append(file)
                del self.files[file]
                live.pop(file, None)
            elif live[file] <= used // 2 and self._table is None and not self._carrying:
                self._carry(file)

    def _find_taken(self, kept: int, limit: int) -> None:
        """Find what is kept for optional feeds alone, beyond ``retain`` or near ``max_backlog``."""
        seen, most = self._seen(optional=False), self.options.max_backlog
        for file, (used, newest) in self.files.items():
            if kept <= self.options.retain or file >= limit or newest > seen:
                break
            kept, self.taken = kept - used, max(self.taken, newest)
        s, required = self.sequences, [view for view in self.views.values() if view.required]
        self._spared = 0
        if s.living >= most - most // 4:
            for row in s.row.numbers.tolist():
                if all(view.floors[row] == _DONE for view in required):
                    self._spared += sum(s.nbytes[at] for at in s.chain(row))
        if self._total - self._passed >= most - most // 4:
            seen = min((view.seen for view in required), default=self.durable)
            for position, total in self._totals:
                if position > seen or self._total - total < most // 2:
                    break
                self.taken = max(self.taken, position)

    def pass_by(self, name: str, upto: int, kept: Collection[int] = ()) -> int:
        """Let an optional feed go on after a position; return how many sequences it had and loses.

        ``kept``: sequences that it still needs.
        """
        view, lost = self.views[name], 0
        view.census = None
        view.seen, view.read = max(view.seen, upto), max(view.read, upto)
        for of, row in list(self.sequences.row.items()):
            if of <= upto and view.floors[row] != _DONE and of not in kept:
                lost += view.floors[row] != _UNREAD
                view.floors[row] = _DONE
                self._sweep(row)
        if not kept:  # else the table may lack these
            self._marks[name] = max(upto, self._marks.get(name, -1))
        return lost

    def _carry(self, file: int) -> None:
        """Copy extents of a file to the end of the log."""
        s = self.sequences
        found = np.flatnonzero(np.asarray(s.file) == file)[:_MOST_CARRIED]
        ends = np.cumsum(np.asarray(s.nbytes)[found])
        rows = found[: max(1, int(np.searchsorted(ends, _MOST_CARRIED_BYTES)))].tolist()
        extents = [s.extent(row) for row in rows]
        names = [(s.id[s.of[row]], s.upto[row], s.at[row], s.nbytes[row]) for row in rows]
        copies = [Copy(*extent[3:6]) for extent in extents]
        place = self._write(Record(Kind.CARRY, key=msgpack.packb(names)), *copies)
        for row, extent in zip(rows, extents, strict=True):
            self._group.moved.append((row, extent._replace(place=place)))
            place += extent.nbytes
        self._carrying = True

    # Another life

    def restore(
        self, groups: Iterable[tuple[int, int, memoryview]], there: Callable[[int], bool]
    ) -> None:
        """Apply groups (file, place, bytes), from the one with the first piece of a table on.

        ``there`` tells whether a file of the table is still there.
        """
        run = list[Entry]()
        for file, place, data in groups:
            first, _, count, _, table, _ = GROUP.unpack_from(data)
            self._restored = min(self._restored, first)
            for entry in entries(file, place, data):
                if entry.record.kind <= Kind.STEPS:
                    run.append(entry)
                    continue
                if entry.record.kind in (Kind.TABLE, Kind.CARRY):
                    self._replay(run)  # the other kinds are of producers alone
                self._fold(entry)
                if entry.record.kind == Kind.TABLE and entry.nbytes:
                    at = entry.place - place
                    self._enter(entry.record.first, data[at : at + entry.nbytes], there)
                elif entry.record.kind == Kind.CARRY:
                    self._carried(entry)
            if len(run) >= _AT_ONCE:
                self._replay(run)
            if table:
                self._durable_table, self._marks = table, dict(self._next_marks)
            self.position = first + count
            self._book(file, place, len(data))
            self._group.file, self._group.place = file, place + record_bytes(len(data))
        self._replay(run)
        self._group.first, self._group.before = self.position, self.position - 1
        self.durable = self.position - 1
        for p in self._producers.values():
            p.durable, p.touched = p.last, min(p.touched, self._frozen)

    def _replay(self, run: list[Entry]) -> None:
        """Apply openings and steps at once, as ``_fold`` does one by one.  No view is there yet."""
        if not run:
            return
        positions, records, *lie = zip(*run, strict=True)
        s, one = self.sequences, np.array([*records], RECORDS)
        at, file, place, nbytes = map(np.array, (positions, *lie))
        run.clear()
        self._since += int(nbytes.sum()) + _RECORD_COST * len(one)
        items = zip(one["number"].tolist(), one["time"].tolist(), strict=True)
        for of, (number, time) in dict(zip(one["producer"].tolist(), items, strict=True)).items():
            if (p := self._producers.get(of)) is not None and number > p.last:
                p.last, p.touched = number, time
        new = one[one["kind"] == Kind.OPENED]
        columns = [new[name].tobytes() for name in ("of", "producer", "time")]
        columns[2:2] = bytes(8 * len(new)), np.full(len(new), NEVER).tobytes()
        counts, state = bytes(4 * len(new)), bytes(len(new))
        s.enter(new["key"].tolist(), [counts, *columns, state, *[b""] * 8])
        row = s.row.find(one["of"])
        self._unknown |= zip(one["of"][row < 0].tolist(), at[row < 0].tolist(), strict=True)
        known = np.flatnonzero(row >= 0)
        np.maximum.at(np.asarray(s.touched), row[known], one["time"][known])
        steps = known[one["steps"][known] > 0]
        np.asarray(s.steps)[row[steps]] = (one["first"] + one["steps"])[steps]
        contexts = known[one["context"][known] > 0]
        which = np.append(contexts, steps)
        order = row[which].argsort(kind="stable")  # a context comes before the steps
        which, has = which[order], order >= len(contexts)
        e, before = one[which], one["context"][which]
        nbytes = np.where(has, nbytes[which] - before, before)
        lies = at[which], file[which], place[which] + before * has, nbytes
        extents = (e["first"] + e["steps"]) * has, e["first"], *lies, e["version"], e["time"]
        typed = zip(extents, EXTENT, strict=True)
        s.extend(row[which], [column.astype(code).tobytes() for column, code in typed])
        for i in known[one["close"][known] > 0].tolist():
            s.closed_at[row[i]] = at[i]
            s.settle(row[i], s.state[row[i]] | one["close"][i])

    def _carried(self, entry: Entry) -> None:
        """Note where the extents that a record names lie now."""
        s, place = self.sequences, entry.place
        for of, *extent, nbytes in msgpack.unpackb(entry.record.key):
            row = s.row.get(of)
            for at in s.chain(row):
                if [s.upto[at], s.at[at]] == extent:
                    s.move(at, entry.file, place)
            place += nbytes

    def next_file(self, number: int) -> None:
        """Go on in another file, whatever room the last one has."""
        self._group.file, self._group.place = number, START + HEAD

    @property
    def file(self) -> int:
        """The number of the file that is written."""
        return self._group.file
