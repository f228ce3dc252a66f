"""A journal gives back what was appended, at any cut, and knows damage from a torn end."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace_server.state import journal as module
from headrace_server.state.journal import Journal, JournalDamaged, NoRoom, create, record_bytes
from headrace_server.state.journal_file import MARK, MARK_AT

_PAGE = 4096


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_HALF", _PAGE)
    monkeypatch.setattr(module, "_USUAL_HALF", 4 * _PAGE)


def payloads(journal: Journal) -> list[bytes]:
    return [journal.read(record.place, record.nbytes) for record in journal.records]


def found(path: Path, durable: bool = True) -> list[bytes]:
    journal = Journal(path, durable)
    try:
        return payloads(journal)
    finally:
        journal.close()


class Counting:
    """A journal whose live table is the sum of all that was appended."""

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.journal = Journal(path, durable)
        self.total = sum(int(one[-40:]) for one in payloads(self.journal))

    def add(self, number: int, size: int = 40) -> None:
        data = [b"%0*d" % (size, number)]
        try:
            self.journal.append(data)
        except NoRoom:
            mine = b"%040d" % self.total
            with self.journal.turn(record_bytes(len(mine)), size) as table:
                table.write([mine])
            self.journal.append(data)
        self.total += number


def test_appended_records_come_back_in_order_after_a_close_and_after_a_kill(tmp_path: Path):
    path, copy = tmp_path / "j", tmp_path / "killed"
    create(path, [[b"table"]])
    journal = Journal(path, True)
    sizes = (0, 1, 63, 64, 65)
    places = [journal.append([b"a" * n, b"b"]) for n in sizes]
    for place, n in zip(places, sizes, strict=True):
        assert journal.read(place, n + 1) == b"a" * n + b"b"
    copy.write_bytes(path.read_bytes())
    journal.close()
    wanted = [b"table", *(b"a" * n + b"b" for n in (0, 1, 63, 64, 65))]
    assert found(path) == found(copy) == found(path) == wanted


@pytest.mark.parametrize("durable", [True, False])
def test_lap_after_lap_and_a_larger_file_lose_nothing(durable: bool, tmp_path: Path):
    path, chance, total = tmp_path / "j", random.Random(3), 0
    create(path, [])
    sizes = {path.stat().st_size}
    for _ in range(8):
        one = Counting(path, durable)
        assert one.total == total
        for _ in range(chance.randrange(1, 200)):
            number = chance.randrange(1000)
            one.add(number, chance.choice([40, 300, 3000]))
            total += number
            sizes.add(path.stat().st_size)
        one.journal.close()
    assert sorted(sizes) == [3 * _PAGE, 9 * _PAGE]
    assert not (tmp_path / "j.new").exists()


def test_a_copy_has_room_for_its_table_only_and_goes_on_in_a_new_file(tmp_path: Path):
    path, table = tmp_path / "j", [b"%05000d" % 7]
    create(path, [table], record_bytes(5000))
    assert path.stat().st_size == 3 * _PAGE
    assert found(path) == table
    one = Counting(path)
    one.add(3, 3000)
    one.journal.close()
    assert path.stat().st_size > 3 * _PAGE
    assert Counting(path).total == 10


def test_a_commit_that_is_larger_than_a_half_makes_the_file_larger(tmp_path: Path):
    path = tmp_path / "j"
    create(path, [])
    one = Counting(path)
    one.add(7, 100_000)
    one.journal.close()
    assert Counting(path).total == 7


@pytest.mark.parametrize(("commit", "size"), [(4, 64 << 10), (6 << 10, 4 << 20)])
def test_in_memory_a_half_grows_where_commits_are_large_beside_it(
    commit: int, size: int, tmp_path: Path
):
    path, laps = tmp_path / "j", 0
    create(path, [], in_memory=True)
    with contextlib.closing(Journal(path, False, in_memory=True)) as journal:
        for _ in range(600):
            try:
                journal.append([bytes(commit)])
            except NoRoom:
                laps += 1
                with journal.turn(record_bytes(commit), commit) as table:
                    table.write([bytes(commit)])
                journal.append([bytes(commit)])
    assert laps < 12
    assert path.stat().st_size < 3 * size


def test_a_table_that_was_not_ended_is_as_if_it_had_not_begun(tmp_path: Path):
    path = tmp_path / "j"
    create(path, [])
    one = Counting(path)
    for number in range(1, 6):
        one.add(number)

    def fails() -> None:
        with one.journal.turn(1000, 100) as table:
            table.write([b"%040d" % 1000])
            raise KeyError

    with pytest.raises(KeyError):
        fails()  # in a larger file
    while path.stat().st_size < 2 * 4 * _PAGE:
        one.add(0)
    with pytest.raises(KeyError):
        fails()  # in the other half
    one.add(6)
    copy = tmp_path / "killed"
    copy.write_bytes(path.read_bytes())
    one.journal.close()
    assert Counting(path).total == Counting(copy).total == 21
    assert not (tmp_path / "j.new").exists()


def test_a_table_larger_than_announced_is_an_error_of_the_caller(tmp_path: Path):
    create(tmp_path / "j", [])
    journal = Journal(tmp_path / "j", True)
    with pytest.raises(NoRoom, match="would end at byte"), journal.turn(10, 10) as table:
        table.write([bytes(100_000)])
    journal.close()
    assert found(tmp_path / "j") == []


def traced(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[], None],
    acknowledged: Callable[[], int],
) -> list[tuple[int, bytes]]:
    """Yield the file before, amid and after each write of some work, with the writes done so far.

    A write that is cut short has reached the disk up to some byte, or in any of its sectors.
    """
    states, chance, write = list[tuple[int, bytes]](), random.Random(8), os.pwritev

    def torn(fd: int, parts: list[bytes], place: int) -> int:
        before, data = path.read_bytes(), b"".join(parts)
        if os.fstat(fd).st_ino == path.stat().st_ino:
            for cut in {0, 1, len(data) - 1, *(chance.randrange(len(data)) for _ in range(3))}:
                states.append((acknowledged(), before[:place] + data[:cut] + before[place + cut :]))
            sectors = bytearray(before)
            for at in range(0, len(data), 512):
                if chance.random() < 0.5:
                    part = data[at : at + 512]
                    sectors[place + at : place + at + len(part)] = part
            states.append((acknowledged(), bytes(sectors)))
        written = write(fd, parts, place)
        states.append((acknowledged(), path.read_bytes()))
        return written

    monkeypatch.setattr(module.os, "pwritev", torn)
    work()
    monkeypatch.setattr(module.os, "pwritev", write)
    return states


def test_every_prefix_and_every_torn_write_opens_to_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each commit adds a power of three, so a total names the commits that are in it."""
    path, other, chance = tmp_path / "j", tmp_path / "cut", random.Random(1)
    create(path, [])
    one = Counting(path)
    done: list[int] = []

    def work() -> None:
        for k in range(80):
            one.add(3**k, chance.choice([40, 200, 900]))
            done.append(k + 1)

    states = traced(path, monkeypatch, work, lambda: len(done))
    totals = [0]
    for k in range(80):
        totals.append(totals[-1] + 3**k)
    for acknowledged, state in states:
        other.write_bytes(state)
        journal = Journal(other, True)
        total = sum(int(one) for one in payloads(journal))
        journal.close()
        assert totals.index(total) in (acknowledged, acknowledged + 1)


def test_a_wrong_bit_before_the_last_record_is_refused(tmp_path: Path):
    path = tmp_path / "j"
    create(path, [[b"table" * 20]])
    journal = Journal(path, True)
    for number in range(6):
        last = journal.append([b"%0300d" % number])
    data = path.read_bytes()
    journal.close()
    refused = 0
    for at in range(_PAGE, last - 64, 37):
        wrong = bytearray(data)
        wrong[at] ^= 4
        path.write_bytes(wrong)
        try:
            assert len(found(path)) == 7  # a byte between two records
        except JournalDamaged:
            refused += 1
    assert refused > 40
    wrong = bytearray(data)
    wrong[last + 5] ^= 4
    path.write_bytes(wrong)
    assert len(found(path)) == 6  # as a commit that an end cut short


@pytest.mark.parametrize("records", [2, 3, 4])
def test_damage_to_all_of_the_last_records_is_no_commit_cut_short(records: int, tmp_path: Path):
    path = tmp_path / "j"
    create(path, [])
    journal = Journal(path, True)
    places = [journal.append([b"%0200d" % number]) for number in range(6)]
    data = bytearray(path.read_bytes())
    journal.close()
    for place in places[-records:]:
        data[place + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="fails its checksum, and later records are there"):
        found(path)
    for at in range(60):  # whatever else the header of the last one has lost
        path.write_bytes(data)
        with open(path, "r+b") as file:
            file.seek(places[-1] - 64 + at)
            file.write(bytes([data[places[-1] - 64 + at] ^ 0x10]))
        with pytest.raises(JournalDamaged):
            found(path)
    with contextlib.closing(Journal(path, False)) as journal:  # power was lost under "process"
        assert len(journal.records) == 6 - records


def test_after_a_close_a_last_commit_that_is_damaged_or_gone_is_found_too(tmp_path: Path):
    path = tmp_path / "j"
    create(path, [])
    journal = Journal(path, True)
    journal.append([b"one"])
    last = journal.append([b"last"])
    journal.close()
    data = path.read_bytes()
    for wrong in (b"past", bytes(4)):
        path.write_bytes(data[:last] + wrong + data[last + 4 :])
        with pytest.raises(JournalDamaged, match="it was closed after one that ended at"):
            found(path)
    path.write_bytes(data[: last - 64] + bytes(len(data) - last + 64))
    with pytest.raises(JournalDamaged, match="it was closed after one that ended at"):
        found(path)
    path.write_bytes(data)
    opened, killed = Journal(path, True), tmp_path / "killed"
    killed.write_bytes(path.read_bytes())  # what is appended may be cut short again
    opened.close()
    assert found(killed) == found(path) == [b"one", b"last"]


@pytest.mark.parametrize("at", [0, MARK.size - 1, MARK.size])
def test_a_mark_of_the_close_that_is_damaged_counts_as_none(at: int, tmp_path: Path):
    path = tmp_path / "j"
    create(path, [[b"table"]])
    journal = Journal(path, True)
    journal.append([b"commit"])
    journal.close()
    data = bytearray(path.read_bytes())
    data[MARK_AT + at] ^= 1
    path.write_bytes(data)
    assert found(path) == [b"table", b"commit"]


def test_unsynced_records_that_survived_a_loss_of_power_are_never_joined_to_later_ones(
    tmp_path: Path,
):
    """Without ``durable`` a record may be lost and the ones after it be there."""
    path = tmp_path / "j"
    create(path, [])
    journal = Journal(path, False)
    places = [journal.append([b"%040d" % number]) for number in range(5)]
    data = bytearray(path.read_bytes())
    data[places[2] - 64 : places[2]] = bytes(64)
    path.write_bytes(data)
    assert [int(one) for one in found(path, durable=False)] == [0, 1]
    again = Journal(path, False)
    again.append([b"%040d" % 7])  # takes the place of the lost one; 3 and 4 are still there
    again.close()
    assert [int(one) for one in found(path, durable=True)] == [0, 1, 7]
    journal.close()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (b"", "it is empty"),
        (b"something else " * 1000, "no journal of a headrace server"),
        (b"HRJOURNL" + bytes(_PAGE), "its header fails its checksum"),
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(
    wrong: bytes, match: str, tmp_path: Path
):
    (tmp_path / "j").write_bytes(wrong)
    with pytest.raises(JournalDamaged, match=match):
        Journal(tmp_path / "j", True)
    assert (tmp_path / "j").read_bytes() == wrong


def test_a_record_that_went_wrong_while_the_file_is_open_is_not_read(tmp_path: Path):
    create(tmp_path / "j", [])
    journal = Journal(tmp_path / "j", True)
    places = [journal.append([b"first"]), journal.append([b"", np.arange(9, dtype=np.uint8)])]
    assert journal.read(places[1], 9) == bytes(range(9))
    for at in (places[1] - 60, places[1] - 24, places[1] + 5):
        data = bytearray((tmp_path / "j").read_bytes())
        data[at] ^= 4
        (tmp_path / "j").write_bytes(data)
        with pytest.raises(ValueError, match=f"the record at byte {places[1] - 64} fails its"):
            journal.read(places[1], 9)
        data[at] ^= 4
        (tmp_path / "j").write_bytes(data)
    with pytest.raises(ValueError, match="fails its checksum"):
        journal.read(places[0], 4)
    assert journal.read(places[0], 5) == b"first"
    journal.close()


def test_a_file_that_was_cut_is_refused(tmp_path: Path):
    create(tmp_path / "j", [])
    os.truncate(tmp_path / "j", 2 * _PAGE)
    with pytest.raises(JournalDamaged, match="it has 8192 bytes and was made with 12288"):
        Journal(tmp_path / "j", True)


def test_a_file_of_another_version_is_refused_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "VERSION", 7)
    create(tmp_path / "j", [])
    with pytest.raises(JournalDamaged, match="it is of version 7, and this release reads 3"):
        Journal(tmp_path / "j", True)


def test_a_write_that_fails_may_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    create(tmp_path / "j", [])
    journal = Journal(tmp_path / "j", True)
    write = os.pwritev

    def fails(fd: int, parts: list[bytes], place: int) -> int:
        write(fd, [b"".join(parts)[:70]], place)
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(module.os, "pwritev", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        journal.append([b"one"])
    monkeypatch.setattr(module.os, "pwritev", write)
    journal.append([b"two"])
    journal.close()
    assert found(tmp_path / "j") == [b"two"]


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pwritev = os.pwritev
    monkeypatch.setattr(
        module.os, "pwritev", lambda fd, parts, at: pwritev(fd, [b"".join(parts)[:7]], at)
    )
    create(tmp_path / "j", [[b"a table", b" in parts"]])
    journal = Journal(tmp_path / "j", True)
    journal.append([b"x" * 20, b"", b"y" * 20])
    journal.close()
    assert found(tmp_path / "j") == [b"a table in parts", b"x" * 20 + b"y" * 20]


def test_a_journal_that_can_not_be_made_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match=r"full for a new file of \d+ bytes"):
        create(tmp_path / "j", [])
    assert list(tmp_path.iterdir()) == []


def test_an_end_that_did_not_come_to_the_disk_is_no_damage_to_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """1. The END of a table is not synced; 2. the next attempt is killed amid its table."""
    path = tmp_path / "j"
    create(path, [])
    one = Counting(path)
    while path.stat().st_size < 2 * 4 * _PAGE:
        one.add(1)
    results = iter([None, OSError(errno.ENOSPC, "full"), OSError(errno.ENOSPC, "full")])

    def synced(fd: int) -> None:
        result = next(results)
        if result is not None:
            raise result

    monkeypatch.setattr(module.os, "fdatasync", synced)
    for _ in range(2):
        with pytest.raises(OSError, match="full"), one.journal.turn(1000, 100) as table:
            table.write([b"%040d" % one.total])
    monkeypatch.undo()
    copy = tmp_path / "killed"
    copy.write_bytes(path.read_bytes())
    one.journal.close()
    assert Counting(copy).total == one.total


def test_a_new_file_whose_name_is_not_synced_is_written_to_only_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "j"
    create(path, [])
    one = Counting(path)
    sync, failures = module.sync_directory, [OSError(errno.EIO, "gone")] * 2

    def fails(directory: Path) -> None:
        if failures:
            raise failures.pop()
        sync(directory)

    def full(path: Path, half: int, halves: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module, "sync_directory", fails)
    for _ in range(200):
        if len(failures) == 1:
            monkeypatch.setattr(module, "_new_file", full)
        with contextlib.suppress(OSError):
            one.add(1)
    assert not failures
    copy = tmp_path / "killed"
    copy.write_bytes(path.read_bytes())
    one.journal.close()
    assert Counting(path).total == Counting(copy).total == one.total


def test_a_new_file_that_can_not_take_its_place_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    create(tmp_path / "j", [])
    journal = Journal(tmp_path / "j", True)
    gc.collect()  # files of tests before this one
    before = sorted(os.listdir("/proc/self/fd"))

    def fails(new: Path, old: Path) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(module.os, "replace", fails)
    with pytest.raises(OSError, match="read-only"), journal.turn(1000, 100):
        pass
    assert sorted(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()
    journal.close()
