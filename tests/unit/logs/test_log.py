"""A log on real files: what was stored comes back, and damage is told from a torn end."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace_proto.errors import ServerError
from headrace_server.files import journal_file
from headrace_server.files.journal_file import HEAD, START, JournalFile, record_bytes
from headrace_server.logs.ledger import Ledger, LogOptions
from headrace_server.logs.log import Log
from headrace_server.logs.log_files import LogDamaged, LogFiles
from headrace_server.logs.records import NEVER, Close, Kind, Record
from headrace_server.logs.words import Answer, Item
from tests.log_steps import WIDTHS, pieces, standing

_FILE = START + HEAD + (16 << 10)
_PATIENCE_S = 20


class Pushed:
    """A log with one feed and one producer, on files."""

    def __init__(self, directory: Path, durability: str = "power", **options: float) -> None:
        self.wake = os.eventfd(0)
        chosen = {"file_bytes": _FILE, "window": 1 << 20, **options}
        self.files = LogFiles(directory, "log/0", durability, chosen["file_bytes"], self.wake)
        try:
            self.log = Log(self.files, LogOptions(**chosen), 0.0)
        except ServerError:
            self.files.close()
            raise
        self.number = 0

    def attach(self, seen: int = -1, floors: dict[int, int] | None = None) -> Pushed:
        self.log.ledger.attach("feed", seen, floors or {})
        self.log.begin()
        self.log.ledger.greet("actor", 1, 1, 0, 0.0)
        self.settle()
        welcome = self.said()[0]
        self.number = welcome.stored
        self.open = welcome.open
        return self

    def said(self) -> list[Answer]:
        sent, self.log.ledger.sent = self.log.ledger.sent, []
        return [message for _, message in sent]

    def settle(self) -> None:
        """Wait until all is durable."""
        self.log.flush()
        while self.log.ledger.durable < self.log.ledger.position - 1:
            assert select.select([self.wake], [], [], _PATIENCE_S)[0]
            os.eventfd_read(self.wake)
            self.log.flush()

    def put(self, key: bytes, first: int, steps: int, opens=False, close=Close.GOING, context=b""):
        self.number += 1
        data = b"".join(columns(key, first, first + steps))
        item = Item(self.number, key, opens, first, steps, close, 7, context, data)
        self.log.ledger.append(1, [item], 1.0, self.number - 1, 1)

    def events(self) -> list[Record]:
        self.read = list(iter(lambda: self.log.next_event("feed"), None))
        return [entry.record for entry in self.read]

    def close(self) -> None:
        self.log.close()
        os.close(self.wake)


def columns(key: bytes, first: int, after: int) -> list[bytes]:
    steps = np.arange(first, after)
    return [(steps * 11 + key[0]).astype("<i8").tobytes(), steps.astype("<i4").tobytes()]


def steps_of(log: Log, of: int, first: int, after: int) -> list[bytes]:
    return [b"".join(map(bytes, pieces(log, of, column, first, after))) for column in range(2)]


@pytest.fixture
def pushed(tmp_path: Path) -> Iterator[Callable[..., Pushed]]:
    there: list[Pushed] = []

    def make(*arguments: str, **options: float) -> Pushed:
        if there:
            there.pop().close()
        there.append(Pushed(tmp_path / "log", *arguments, **options))
        return there[0]

    yield make
    while there:
        with contextlib.suppress(ServerError):
            there.pop().close()


def fill(one: Pushed, files: int = 3) -> None:
    """Fill some files: a key that stays open from the beginning, and others that end."""
    one.put(b"a", 0, 3, opens=True, context=b"of a")
    turn = 0
    while one.log.ledger.file <= files:
        key = b"%c%d" % (98 + turn % 20, turn)
        one.put(key, 0, 20, opens=True)
        one.put(key, 20, 20, close=Close.END)
        one.settle()
        turn += 1
    one.put(b"a", 3, 2)
    one.settle()


@pytest.mark.parametrize("durability", ["power", "process"])
def test_what_was_stored_is_there_after_a_restart(durability: str, pushed):
    one = pushed(durability).attach()
    fill(one)
    first = one.events()
    positions = [entry.position for entry in one.read]
    assert positions == sorted(positions)
    assert steps_of(one.log, first[0].of, 1, 5) == columns(b"a", 1, 5)
    assert bytes(one.log.context(first[0].of)) == b"of a"
    for _ in range(2):
        one = pushed(durability).attach()
        assert one.open == {b"a": 5}
        assert one.events() == first
        for event in first:
            if event.close:
                key = next(e.key for e in first if e.of == event.of and e.key)
                assert steps_of(one.log, event.of, 5, 40) == columns(key, 5, 40)
    one.put(b"a", 5, 1, close=Close.END)
    one.settle()
    assert [(e.of, e.steps, e.close) for e in one.events()] == [(first[0].of, 1, Close.END)]
    with pytest.raises(LookupError, match="steps 6 to 7"):
        steps_of(one.log, first[0].of, 5, 7)


def test_parts_are_views_of_the_files(pushed):
    one = pushed().attach()
    one.put(b"a", 0, 3, opens=True)
    one.put(b"a", 3, 3)
    one.settle()
    (of, *_), _ = ((event.of,) for event in one.events())
    parts = list(one.log.parts(of))
    assert [len(part) for part in parts] == [3 * sum(WIDTHS)] * 2
    assert parts[0].obj is parts[1].obj and parts[0].readonly


def test_files_that_nothing_needs_go_and_few_steps_are_carried_on(pushed, tmp_path: Path):
    one = pushed("process", piece=20, retain=0).attach()
    one.put(b"a", 0, 3, opens=True, context=b"of a")
    of, most = -1, 0
    for turn in range(2000):
        key = b"b%d" % turn
        one.put(key, 0, 40, opens=True, close=Close.END)
        one.settle()
        events = one.events()
        of = max(of, *(event.of for event in events if event.key == b"a"), -1)
        done = [event.of for event in events if event.key != b"a"]
        one.log.ledger.release("feed", one.read[-1].position, {of: 0} if turn < 2 else {}, done)
        one.log.tick(1.0)
        one.said()
        if turn > 400:
            most = max(most, len(list((tmp_path / "log").glob("*.log"))))
    assert one.log.ledger.file > 60 and most <= 6
    (extent, *_) = standing(one.log.ledger, of).extents
    assert extent.file > one.log.ledger.file - 8 and extent.position == of
    one = pushed("process", piece=20).attach(one.log.ledger.views["feed"].seen, {of: 0})
    assert steps_of(one.log, of, 0, 3) == columns(b"a", 0, 3)
    assert bytes(one.log.context(of)) == b"of a"


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a_last_group_that_is_cut_short_was_never_acknowledged(durability: str, pushed, tmp_path):
    one = pushed(durability).attach()
    one.put(b"a", 0, 3, opens=True)
    one.settle()
    place, whole = one.log.ledger._group.place, one.number
    one.put(b"a", 3, 3)
    one.settle()
    one.files._file.close()  # as a kill does, without the mark of an orderly end
    one.files._file = None
    path = tmp_path / "log" / "0000000001.log"
    data = path.read_bytes()
    end = place + record_bytes(120) - HEAD
    for cut in (place - HEAD, place - 20, place, place + 31, end - 80):
        path.write_bytes(data[:cut] + bytes(len(data) - cut))
        one = pushed(durability).attach()
        assert (one.number, one.open) == (whole, {b"a": 3})
        one.files._file.close()
        one.files._file = None


def damage(tmp_path: Path, number: int, at: int) -> None:
    path = tmp_path / "log" / f"{number:010}.log"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_log_that_was_not_synced_goes_on_from_before_the_damage(pushed, tmp_path: Path):
    one = pushed("process").attach()
    fill(one)
    position = one.log.ledger.position
    damage(tmp_path, 2, START + HEAD + 700)
    one = pushed("process").attach()
    assert one.log.ledger.position < position / 2 and one.open == {b"a": 3}
    one.put(b"a", 3, 4)
    one.settle()
    one = pushed("process").attach()
    assert one.open == {b"a": 7}
    events = one.events()
    assert steps_of(one.log, events[0].of, 0, 7) == columns(b"a", 0, 7)


def test_a_feed_that_saw_what_a_loss_of_power_took_is_told(pushed, tmp_path: Path):
    one = pushed("process").attach()
    fill(one)
    events = one.events()
    seen = one.read[-1].position
    last = [event.of for event in events if event.key][-1]
    damage(tmp_path, 2, START + HEAD + 700)
    one = pushed("process").attach(seen, {events[0].of: 2, last: 0})
    lost = one.events()
    assert [(event.of, event.close) for event in lost] == [(last, Close.LOST)]
    one.put(b"a", 3, 2)
    one.settle()
    (event,) = one.events()
    assert (event.of, event.steps) == (events[0].of, 2)
    assert one.read[-1].position > seen
    one = pushed("process").attach(seen, {events[0].of: 2})
    assert one.open == {b"a": 5}


def test_damage_to_an_old_file_is_found_when_it_is_read(pushed, tmp_path: Path):
    one = pushed(piece=20).attach()
    fill(one, files=2)
    one.events()
    for _ in range(50):  # a table
        one.log.tick(1.0)
        one.settle()
    fill_more = one.log.ledger._durable_table
    assert fill_more > 1
    one.log.close()
    damage(tmp_path, 1, START + HEAD + 40)
    one = pushed().attach()
    assert one.open == {b"a": 5}
    with pytest.raises(LogDamaged, match="0000000001"):
        one.events()


def test_a_full_disk_delays_groups_and_loses_none(pushed, monkeypatch: pytest.MonkeyPatch):
    one = pushed().attach()
    write, full = journal_file._write_all, [True]

    def fails(*arguments) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    monkeypatch.setattr(journal_file, "_write_all", fails)
    one.put(b"a", 0, 3, opens=True)
    one.log.flush()
    while not one.files.fault:
        one.files._closing.wait(0.01)
    assert "No space left" in one.files.fault and "bytes free" in one.files.fault
    assert one.log.ledger.durable < one.log.ledger.position - 1 and one.said()[-1].stored == 0
    full[0] = False
    one.settle()
    assert not one.files.fault and one.said()[-1].stored == 1


def test_a_log_that_is_closed_while_the_disk_is_full_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = Pushed(tmp_path / "log").attach()
    monkeypatch.setattr(JournalFile, "write", _full)
    one.put(b"a", 0, 3, opens=True)
    one.close()
    with pytest.raises(ServerError, match=r"closed with records unsaved: .*No space left"):
        one.files.stored()


def _full(self, parts):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_record_in_the_wrong_place_ends_the_log(pushed):
    one = pushed().attach()
    one.files._file.write([b"another's"])
    one.put(b"a", 0, 3, opens=True)
    one.log.flush()
    assert select.select([one.wake], [], [], _PATIENCE_S)[0]
    with pytest.raises(ServerError, match="a group lies at byte"):
        one.log.flush()


def test_steps_that_a_loss_of_power_took_from_an_old_file_are_not_made_up(pushed, tmp_path: Path):
    one = pushed("process", piece=20).attach()
    fill(one, files=2)
    of = one.events()[0].of
    one.log.ledger.release("feed", -1, {of: 0}, [])
    one.log.ledger._since = NEVER  # a table is due
    for _ in range(20):
        one.log.tick(1.0)
        one.settle()
    assert one.log.ledger._durable_table > 1
    one.log.close()
    path = tmp_path / "log" / "0000000001.log"
    data = path.read_bytes()
    path.write_bytes(data[: START + HEAD] + bytes(len(data) - START - HEAD))
    one = pushed("process", piece=20).attach(-1, {of: 0})
    assert one.open == {b"a": 5}
    with pytest.raises(LogDamaged, match=r"0000000001\.log is damaged: bytes \d+ to \d+ are not"):
        steps_of(one.log, of, 0, 3)


def test_a_table_has_a_sequence_of_more_pieces_than_a_file_holds(pushed, tmp_path: Path):
    """Its extents are there after a restart, and with a table that a loss left in its middle."""
    one = pushed("process", piece=100, max_backlog=NEVER).attach()
    one.put(b"a", 0, 1, opens=True, context=b"of a")
    for step in range(1, 1000):
        one.put(b"a", step, 1)
        one.settle()
    of = one.events()[0].of
    one.log.ledger.release("feed", -1, {of: 0}, [])
    for _ in range(2):
        one.log.ledger._since, before = NEVER, one.log.ledger._durable_table
        while one.log.ledger._durable_table == before:
            one.log.tick(1.0)
            one.settle()
        one = pushed("process", piece=100, max_backlog=NEVER).attach(-1, {of: 0})
        assert one.open == {b"a": 1000}
        assert steps_of(one.log, of, 0, 1000) == columns(b"a", 0, 1000)
    last = one.log.ledger.file
    one.log.ledger._since = NEVER
    while one.log.ledger.file < last + 3:  # its parts fill files
        one.log.tick(1.0)
        one.settle()
    one.log.close()
    for file in range(last + 2, one.log.ledger.file + 1):
        (tmp_path / "log" / f"{file:010}.log").unlink()
    one = pushed("process", piece=100, max_backlog=NEVER).attach(-1, {of: 0})
    assert steps_of(one.log, of, 0, 1000) == columns(b"a", 0, 1000)


def test_a_closed_log_ends_what_is_open_and_stays_closed(pushed):
    one = pushed(piece=20).attach()
    one.put(b"a", 0, 3, opens=True)
    one.settle()
    one.log.ledger.close(2.0)
    one.settle()
    assert not one.log.ledger.finished
    one.log.tick(2.0)
    one.settle()
    assert one.log.ledger.finished
    assert [event.close for event in one.events()] == [Close.GOING, Close.END]
    one.log.ledger._since = NEVER  # a table is due
    for _ in range(5):
        one.log.tick(2.0)
        one.settle()
    one = pushed().attach()
    assert one.log.ledger.finished and one.open == {}
    one.put(b"b", 0, 3, opens=True)
    one.settle()
    assert one.said()[-1].refused == ((2, "closed"),)


def test_retention_passes_a_feed_by_that_is_not_required(pushed):
    one = pushed("process", piece=20)
    log, ledger = one.log, one.log.ledger
    ledger.attach("slow", -1, {}, required=False)
    one.attach()
    one.put(b"a", 0, 3, opens=True)
    one.settle()
    (opened,) = iter(lambda: log.next_event("slow"), None)
    lost = 0
    for turn in range(600):
        one.put(b"b%d" % turn, 0, 40, opens=True, close=Close.END)
        one.settle()
        events = one.events()
        done = [event.of for event in events if event.key != b"a"]
        floors = {opened.position: 3} if turn < 2 else {}
        ledger.release("feed", one.read[-1].position, floors, done)
        log.tick(1.0)
        while ledger.views["slow"].seen < ledger.taken:
            while (unread := log.unread("slow", ledger.taken)) is None:
                pass
            lost += unread + ledger.pass_by("slow", ledger.taken)
    assert len(ledger.files) < 6
    later = list(iter(lambda: log.next_event("slow"), None))
    first = later[0]
    assert first.record.kind == Kind.OPENED and first.file >= min(ledger.files)
    assert lost == 1 + 600 - len(later)  # it had the first one
    assert steps_of(log, first.position, 0, 40) == columns(first.record.key, 0, 40)


def test_a_producer_with_many_openings_gets_places_for_all_at_once():
    ledger = Ledger(LogOptions(max_open=7))
    for connection in (1, 2):
        ledger.greet(f"actor-{connection}", 1, connection, 0, 0.0)
    ledger.stored(len(ledger.take()))
    for connection in (1, 2):
        ledger.append(connection, [], 0.0, 0, wants=5)
    last = dict(ledger.sent)
    assert (last[1].places, last[2].places) == (5, 2)
