"""A journal's file gives back what was appended, at any cut, and knows damage from a torn end."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace_server.files import journal_file as module
from headrace_server.files.journal_file import (
    HEAD,
    MARK,
    MARK_AT,
    START,
    JournalFile,
    NoRoom,
    record_bytes,
)

_ROOM = 4 * START


def made(path: Path, *table: bytes, durable: bool = True) -> JournalFile:
    with JournalFile.new(path) as file:
        for part in table:
            file.write([part])
        file.publish(_ROOM, 0, durable)
    return file


def found(path: Path, durable: bool = True) -> list[bytes]:
    file, records = JournalFile.open(path, durable)
    try:
        return [bytes(file.read(record.place, record.nbytes)) for record in records]
    finally:
        file.close()


class Counting:
    """A file whose live table is the sum of all that was appended."""

    def __init__(self, path: Path, durable: bool = True) -> None:
        if not path.exists():
            made(path).close()
        self.path, self.durable, self.files = path, durable, 0
        self.total = sum(int(one[-40:]) for one in found(path, durable))
        self.file, _ = JournalFile.open(path, durable)

    def add(self, number: int, size: int = 40) -> None:
        data = [b"%0*d" % (size, number)]
        try:
            self.file.write(data)
        except NoRoom:
            old = self.file
            old.sync_name()
            with JournalFile.new(self.path) as file:
                file.write([b"%040d" % self.total])
                least = file.at + record_bytes(size)
                file.publish(max(_ROOM, least), least, self.durable)
            old.close()
            self.file = file
            self.files += 1
            self.file.write(data)
        self.total += number


@pytest.fixture
def files(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write bytes as a file."""
    path = tmp_path / "cut"

    def write(data: bytes) -> Path:
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("rest", ["zeros", "an earlier file"])
def test_a_file_cut_at_any_byte_has_all_records_before_that(rest, durable, tmp_path, files):
    """Bytes from the cut on are as they were before the write; no table is ever cut."""
    path, before = tmp_path / "j", bytes(_ROOM)
    if rest != "zeros":
        for _ in range(2):
            file = made(path, b"old" * 30)
            while True:
                try:
                    file.write([b"earlier" * (1 + file.at % 31)])
                except NoRoom:
                    break
            file.close()
        before = (tmp_path / "j.spare").read_bytes()
        assert before.count(b"HRJR") > 20
    file, payloads = made(path, b"table", b"of two"), [b"table", b"of two"]
    places, table_end = [START + HEAD, START + 3 * HEAD], file.at
    for n in (1, 63, 64, 65, 600, 0, 7):
        payloads.append(bytes([n % 255]) * n)
        places.append(file.write(payloads[-1:]))
    end = file.at
    file.close()
    whole = path.read_bytes()
    assert whole[end:] == before[end:]
    for cut in range(START, end + 1):
        data = whole[:cut] + before[cut:]

        def is_there(place: int, payload: bytes, data: bytes = data) -> bool:
            header = slice(place - HEAD, place - HEAD + 44)
            return data[header] == whole[header] and data[place:].startswith(payload)

        there = [*takewhile(lambda one: is_there(*one), zip(places, payloads, strict=True))]
        if len(there) < 2:
            with pytest.raises(ValueError, match=f"and its table at {table_end}"):
                found(files(data), durable)
        else:
            assert found(files(data), durable) == payloads[: len(there)], cut
    for cut in range(0, len(whole), 997):
        with pytest.raises(ValueError, match=r"it has \d+ bytes and was made|is empty|no journal"):
            found(files(whole[:cut]), durable)


@pytest.mark.parametrize("durable", [True, False])
def test_file_after_file_loses_nothing_and_takes_the_room_of_the_one_before(
    durable, tmp_path, monkeypatch
):
    path, chance, total, zeros, files = tmp_path / "j", random.Random(3), 0, [0], 0
    write = module._write_all

    def counts(fd: int, place: int, parts: list[Any]) -> None:
        zeros[0] += not any(b"".join(map(bytes, parts)))
        write(fd, place, parts)

    monkeypatch.setattr(module, "_write_all", counts)
    for _ in range(8):
        one = Counting(path, durable)
        assert one.total == total
        for _ in range(chance.randrange(1, 200)):
            number = chance.randrange(1000)
            one.add(number, chance.choice([40, 300, 3000]))
            total += number
        one.file.close(mark=True)
        files += one.files
    assert files > 10 and zeros == [1 + durable]  # without durability a later one is only reserved
    assert {file.name: file.stat().st_size for file in tmp_path.iterdir()} == {
        "j": _ROOM,
        "j.spare": _ROOM,
    }


def test_a_file_is_as_large_as_a_full_disk_allows_if_that_is_enough(tmp_path, monkeypatch):
    write = module._write_all

    def full(fd: int, place: int, parts: list[Any]) -> None:
        if place >= 2 * START:
            raise OSError(errno.ENOSPC, "full")
        write(fd, place, [part[: 2 * START - place] for part in parts])

    monkeypatch.setattr(module, "_write_all", full)
    with pytest.raises(OSError, match="full for a new file of 65536 bytes"):
        with JournalFile.new(tmp_path / "j") as file:
            file.publish(16 * START, 2 * START + 1, True)
    assert [*tmp_path.iterdir()] == []
    with JournalFile.new(tmp_path / "j") as file:
        file.publish(16 * START, 2 * START, True)
    monkeypatch.undo()
    file.write([bytes(START - HEAD)])
    with pytest.raises(NoRoom, match="would end at byte 8256 of 8192"):
        file.write([])
    file.close()
    assert found(tmp_path / "j") == [bytes(START - HEAD)]


def torn(before: bytes, place: int, data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield a file as a write leaves it that is cut short: up to some byte, or in any sectors."""
    before = before.ljust(place + len(data), b"\0")
    for cut in {0, 1, len(data) - 1, *(chance.randrange(len(data)) for _ in range(3))}:
        yield before[:place] + data[:cut] + before[place + cut :]
    sectors = bytearray(before)
    for at in range(0, len(data), 512):
        if chance.random() < 0.5:
            part = data[at : at + 512]
            sectors[place + at : place + at + len(part)] = part
    yield bytes(sectors)


def test_a_crash_at_any_call_of_the_system_or_amid_any_write_leaves_what_was_acknowledged(
    tmp_path, monkeypatch
):
    """Each commit adds a power of three, so a total names the commits that are in it."""
    folder, other, chance = tmp_path / "of", tmp_path / "killed", random.Random(1)
    folder.mkdir()
    path, done, seen = folder / "j", 0, 0
    totals = [sum(3**k for k in range(n)) for n in range(81)]
    one = Counting(path)
    real = {name: getattr(os, name) for name in ("link", "rename", "replace", "fsync", "unlink")}
    write = os.pwritev

    def judge() -> None:
        nonlocal seen
        again = Counting(other / "j")
        assert totals.index(again.total) in (done, done + 1), (again.total, done)
        for _ in range(2 * (seen % 5 == 0)):  # it goes on, into another file
            again.add(0, 3 * START)
        again.file.close()
        assert sum(int(one[-40:]) for one in found(other / "j")) == again.total
        seen += 1

    def crash() -> None:
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        inodes = dict[int, Path]()
        for file in folder.iterdir():  # links stay links
            inode = file.stat().st_ino
            if inode in inodes:
                real["link"](inodes[inode], other / file.name)
            else:
                shutil.copy(file, other)
                inodes[inode] = other / file.name

    def crashes_amid(fd: int, parts: list[bytes], place: int) -> int:
        target = os.readlink(f"/proc/self/fd/{fd}")
        if Path(target).parent == folder:
            before, data = Path(target).read_bytes(), b"".join(parts)
            with monkeypatch.context() as calm:
                unpatch(calm)
                for state in torn(before, place, data, chance):
                    crash()
                    (other / Path(target).name).write_bytes(state)
                    judge()
        return write(fd, parts, place)

    def crashes(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with monkeypatch.context() as calm:
                unpatch(calm)
                crash()
                judge()
            return real[name](*arguments, **named)

        return call

    def unpatch(calm: pytest.MonkeyPatch) -> None:
        calm.setattr(os, "pwritev", write)
        for name, function in real.items():
            calm.setattr(os, name, function)

    monkeypatch.setattr(os, "pwritev", crashes_amid)
    for name in real:
        monkeypatch.setattr(os, name, crashes(name))
    for k in range(80):
        one.add(3**k, chance.choice([40, 200, 900]))
        done = k + 1
    monkeypatch.undo()
    assert one.files >= 3 and seen > 500
    one.file.close()


def test_a_wrong_bit_before_the_last_record_is_refused(tmp_path, files):
    file = made(tmp_path / "j", b"table" * 20)
    for number in range(6):
        last = file.write([b"%0300d" % number])
    file.close()
    data, refused = (tmp_path / "j").read_bytes(), 0
    for at in range(START, last - HEAD, 37):
        wrong = bytearray(data)
        wrong[at] ^= 4
        try:
            assert len(found(files(wrong))) == 7  # a byte between two records
        except ValueError:
            refused += 1
    assert refused > 40
    wrong = bytearray(data)
    wrong[last + 5] ^= 4
    assert len(found(files(wrong))) == 6  # as a commit that an end cut short


@pytest.mark.parametrize("records", [2, 3, 4])
def test_damage_to_all_of_the_last_records_is_no_commit_cut_short(records, tmp_path, files):
    file = made(tmp_path / "j")
    places = [file.write([b"%0200d" % number]) for number in range(6)]
    file.close()
    data = bytearray((tmp_path / "j").read_bytes())
    for place in places[-records:]:
        data[place + 7] ^= 1
    with pytest.raises(ValueError, match="fails its checksum, and later records are there"):
        found(files(data))
    for at in range(44):  # whatever else the header of the last one has lost
        wrong = bytearray(data)
        wrong[places[-1] - HEAD + at] ^= 0x10
        with pytest.raises(ValueError, match="later records are there"):
            found(files(wrong))
    assert len(found(files(data), durable=False)) == 6 - records  # power was lost under "process"


def test_after_a_close_a_last_commit_that_is_damaged_or_gone_is_found_too(tmp_path, files):
    file = made(tmp_path / "j")
    file.write([b"one"])
    last = file.write([b"last"])
    file.close(mark=True)
    data = (tmp_path / "j").read_bytes()
    gone = data[: last - HEAD] + bytes(len(data) - last + HEAD)
    for wrong in (data[:last] + b"past" + data[last + 4 :], gone):
        for durable in (True, False):
            with pytest.raises(ValueError, match="it was closed after one that ended at"):
                found(files(wrong), durable)
    again, _ = JournalFile.open(files(data), True)
    again.write([b"more"])  # what comes after the close may be cut short
    again.close()
    data = bytearray((tmp_path / "cut").read_bytes())
    assert found(tmp_path / "cut") == [b"one", b"last", b"more"]
    data[last + HEAD + HEAD] ^= 1
    assert found(files(data)) == [b"one", b"last"]


@pytest.mark.parametrize("at", [0, MARK.size - 1, MARK.size])
def test_a_mark_of_the_close_that_is_damaged_counts_as_none(at, tmp_path, files):
    file = made(tmp_path / "j", b"table")
    file.write([b"commit"])
    file.close(mark=True)
    data = bytearray((tmp_path / "j").read_bytes())
    data[MARK_AT + at] ^= 1
    assert found(files(data)) == [b"table", b"commit"]


def test_unsynced_records_that_survived_a_loss_of_power_are_never_joined_to_later_ones(tmp_path):
    """Without ``durable`` a record may be lost and the ones after it be there."""
    path = tmp_path / "j"
    file = made(path, durable=False)
    places = [file.write([b"%040d" % 3**n]) for n in range(5)]
    file.close()
    data = bytearray(path.read_bytes())
    data[places[2] - HEAD : places[2]] = bytes(HEAD)
    path.write_bytes(data)
    one = Counting(path, durable=False)
    assert one.total == 1 + 3
    one.add(9)  # in a new file: it would have the place of the lost one
    one.file.close()
    assert Counting(path, durable=True).total == 1 + 3 + 9


def test_a_record_that_went_wrong_while_the_file_is_open_is_not_read(tmp_path):
    path = tmp_path / "j"
    file = made(path)
    places = [file.write([b"first"]), file.write([b"", np.arange(9, dtype=np.uint8)])]
    assert file.read(places[1], 9) == bytes(range(9))
    for at in (places[1] - 60, places[1] - 30, places[1] + 5):
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"the record at byte {places[1] - HEAD} fails its"):
            file.read(places[1], 9)
        data[at] ^= 4
        path.write_bytes(data)
    with pytest.raises(ValueError, match="fails its checksum"):
        file.read(places[0], 4)
    assert file.read(places[0], 5) == b"first"
    file.close()


def test_a_write_that_fails_may_be_written_again(tmp_path, monkeypatch):
    file, write = made(tmp_path / "j"), os.pwritev

    def fails(fd: int, parts: list[bytes], place: int) -> int:
        write(fd, [b"".join(parts)[:70]], place)
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(module.os, "pwritev", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        file.write([b"one"])
    monkeypatch.setattr(module.os, "pwritev", write)
    file.write([b"two"])
    file.close()
    assert found(tmp_path / "j") == [b"two"]


def test_short_writes_are_gone_on_with(tmp_path, monkeypatch):
    pwritev = os.pwritev
    monkeypatch.setattr(
        module.os, "pwritev", lambda fd, parts, at: pwritev(fd, [b"".join(parts)[:7]], at)
    )
    file = made(tmp_path / "j", b"a table")
    file.write([b"x" * 20, b"", b"y" * 20])
    file.close()
    assert found(tmp_path / "j") == [b"a table", b"x" * 20 + b"y" * 20]


def test_a_new_file_whose_name_is_not_synced_is_written_to_only_when_it_is(tmp_path, monkeypatch):
    sync, failures = module.sync_directory, [OSError(errno.EIO, "gone")]

    def fails(directory: Path) -> None:
        if failures:
            raise failures.pop()
        sync(directory)

    file = made(tmp_path / "j")
    monkeypatch.setattr(module, "sync_directory", fails)
    with pytest.raises(OSError, match="gone"):
        file.write([b"one"])
    assert found(tmp_path / "j") == []
    file.write([b"two"])
    file.close()
    assert found(tmp_path / "j") == [b"two"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_new_file_that_can_not_take_its_place_leaves_the_one_before_and_no_descriptor(
    call, tmp_path, monkeypatch
):
    path = tmp_path / "j"
    file = made(path, b"one")
    gc.collect()  # files of tests before this one
    before = sorted(os.listdir("/proc/self/fd"))

    def fails(*arguments: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(module.os, call, fails)
    with pytest.raises(OSError, match="read-only"):
        made(path, b"other")
    assert sorted(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()
    assert not (tmp_path / "j.new").exists()
    file.write([b"two"])
    made(path, b"third").close()  # where a link was left it is no room for this file
    assert found(path) == [b"third"]
    with contextlib.suppress(NoRoom):
        file.write([b"three"])
    file.close()
    assert found(tmp_path / "j.spare") == [b"one", b"two", b"three"]
