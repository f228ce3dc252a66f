"""A store returns all acknowledged commits, and reports when it can not."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import random
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_proto.errors import ServerError
from headrace_server.files import journal_file
from headrace_server.files.journal_file import JournalFile
from headrace_server.journal import journal as module
from headrace_server.journal.journal import WORKER, Journal, JournalDamaged
from headrace_server.shaping.stored_state import Change, Saved
from tests.nursery import WarmPopen, environment
from tests.shortage import small_disk
from tests.trials.power import WRITER, fault_of
from tests.unit.changes import Example, Model, example, examples_of, random_change

PATIENCE_S = 30


class Opened:
    """A store, and the bell that it rings."""

    def __init__(
        self,
        path: Path,
        kind: type[Journal] = Journal,
        durability: str = "power",
        owner: str = "",
    ) -> None:
        self.bell = os.eventfd(0)
        self.store = kind(path, durability, self.bell, owner=owner)
        self.done: list[Any] = []

    def until(self, true: Callable[[], bool]) -> None:
        """Take finished tickets, each time the bell rings, until a condition holds."""
        while not true():
            ready, _, _ = select.select([self.bell], [], [], PATIENCE_S)
            assert ready, "the store says nothing"
            os.eventfd_read(self.bell)
            self.done += self.store.take_done()

    def until_done(self, n: int) -> None:
        self.until(lambda: len(self.done) == n)

    def until_done_or_fault(self, n: int) -> None:
        self.until(lambda: bool(self.store.fault) or len(self.done) == n)

    def commit(self, *changes: Change) -> None:
        """Submit, and wait until all is committed."""
        ticket = object()
        for change in changes:
            self.store.submit(change)
        self.store.submit(Change(), tickets=[ticket])
        self.until(lambda: ticket in self.done)

    def copy(self, target: Path) -> str:
        """Wait for a copy, and return its fault."""
        faults: list[str] = []
        self.store.copy(target, faults.append)
        self.until(lambda: bool(self.done) and isinstance(self.done[-1], partial))
        self.done.pop()()
        return faults[0]

    def close(self) -> None:
        self.store.close()
        if self.bell >= 0:
            os.close(self.bell)
            self.bell = -1


@pytest.fixture
def opened() -> Iterator[Callable[..., Opened]]:
    """Opens stores, and closes them when the test ends."""
    stores: list[Opened] = []

    def open_(*args: Any, **kwargs: Any) -> Opened:
        stores.append(Opened(*args, **kwargs))
        return stores[-1]

    yield open_
    for one in stores:
        one.close()
    assert not [t for t in threading.enumerate() if t.name == "headrace-store"]


def killed(path: Path, into: Path) -> Path:
    """Copy the files as they are now, as a kill leaves them."""
    into.mkdir()
    for file in path.parent.glob(path.name + "*"):
        shutil.copy(file, into)
    return into / path.name


def contents(path: Path) -> Saved:
    store = Journal(path, "power")
    try:
        return store.load()
    finally:
        store.close()


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("seed", range(6))
def test_it_gives_back_what_was_submitted_after_a_close_and_after_a_kill(
    seed, durability, tmp_path, opened
):
    chance, model, path = random.Random(seed), Model(), tmp_path / "0.journal"
    for life in range(6):
        one = opened(path, durability=durability)
        assert one.store.load() == model.saved
        tickets = []
        for number in range(chance.randrange(1, 25)):
            change = random_change(chance)
            model.apply(copy.deepcopy(change))
            one.store.submit(change, tickets=[number])
            tickets.append(number)
            if chance.random() < 0.3:
                one.until_done(len(tickets))
        if life % 2:
            one.close()
            one.done += one.store.take_done()
        else:
            one.until_done(len(tickets))
            path = killed(path, tmp_path / f"killed-{life}")
        assert one.done == tickets


def child(code: str, *args: Any) -> subprocess.Popen[bytes]:
    return WarmPopen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env=environment(),
    )


@pytest.mark.parametrize("durability", ["power", "process"])
def test_acknowledged_commits_of_a_killed_process_are_there(durability, tmp_path):
    chance, path, before = random.Random(durability), tmp_path / "0.journal", -1
    for _ in range(16):
        process = child(WRITER, path, durability)
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(chance.choice([1, 2, 10, 60, 300]))]
        process.kill()
        rest = process.stdout.read()  # with what it has read ahead
        process.communicate()
        told += [int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
        assert told == list(range(before + 1, before + 1 + len(told)))  # in order, none left out
        saved = contents(path)
        before = int(saved.meta["n"])
        assert not fault_of(saved, told[-1], "power"), "a kill loses nothing of either"


class Held:
    """Counts the records of journals, each of which waits for the test's permission."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        self.records = 0
        write = JournalFile.write

        def waits(of: JournalFile, parts: Sequence[Any]) -> int:
            self.began.set()
            assert self.go.wait(PATIENCE_S)
            self.records += 1
            return write(of, parts)

        monkeypatch.setattr(JournalFile, "write", waits)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def test_changes_that_gather_while_a_record_is_written_are_the_next_record(tmp_path, opened, held):
    one = opened(tmp_path / "0.journal")
    chance = random.Random(0)
    one.store.submit(Change(put=examples_of([example(chance, 1)])), tickets=[0])
    assert held.began.wait(PATIENCE_S)
    for n in range(1, 201):
        one.store.submit(
            Change(put=examples_of([example(chance, 1)]), meta={"base": b"%d" % n}), tickets=[n]
        )
    assert one.store.take_done() == []
    held.go.set()
    one.until_done(201)
    assert one.done == list(range(201))
    assert held.records == one.store.commits == 2


def test_a_record_that_can_not_be_written_ends_the_store_and_leaves_nothing(tmp_path):
    path = tmp_path / "0.journal"
    one = Opened(path)
    change = Change(put=examples_of([example(random.Random(0), 1)]))
    change.meta["bad"] = object()  # type: ignore[assignment]  # cannot be written
    one.store.submit(change, tickets=["lost"])
    with pytest.raises(ServerError, match=r"0\.journal"):
        one.until(lambda: bool(one.done))
    assert one.done == []
    with pytest.raises(ServerError, match=r"0\.journal"):
        one.store.submit(Change())
    with pytest.raises(ServerError, match=r"0\.journal"):
        one.store.copy(tmp_path / "copy.journal", print)
    one.close()
    assert len(contents(path).examples) == 0


# Full disks


@pytest.fixture(name="small_disk")
def disk_of_48_mb(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "48m") as disk:
        yield disk


def fill(file: Path) -> None:
    """Write a file until the disk is full."""
    with open(file, "wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(4096))


def put(line: int, index: int) -> Change:
    return Change(put=examples_of([Example(line, index, 0, 0, 0, 1, 0, (0, b""), bytes(9000))]))


@pytest.mark.parametrize("restarted", [False, True])
def test_on_a_full_disk_commits_go_on_in_the_room_of_the_file_before(restarted, small_disk, opened):
    path = small_disk / "0.journal"
    one, n = opened(path), 0
    while not (small_disk / "0.journal.spare").exists():
        one.commit(put(n % 40, n))
        n += 1
    if restarted:
        one.close()
        one = opened(path)
    fill(small_disk / "ballast")
    for _ in range(1000):  # 9 MB through files of 1 and 4 MB
        one.commit(put(n % 40, n))
        n += 1
    assert not one.store.fault
    one.close()
    assert max(contents(path).examples.numbers[1]) == n - 1


def test_a_full_disk_is_waited_out_again_and_again(small_disk, opened):
    one, n = opened(small_disk / "0.journal"), 0
    for full in range(3):
        ballast = small_disk / "ballast"
        fill(ballast)
        committed = len(one.done)
        while not one.store.fault:
            one.store.submit(put(n, n), tickets=[n])
            n += 1
            one.until_done_or_fault(n)
        assert "No space left on device" in one.store.fault
        assert "; its file system has" in one.store.fault
        assert "make room" in one.store.fault and len(one.done) < n
        assert one.done == list(range(len(one.done)))
        assert len(one.done) >= committed
        if full == 2:
            break
        ballast.unlink()
        one.until_done(n)
        assert one.done == list(range(n)) and not one.store.fault
    assert one.store.fault in one.copy(small_disk / "copy.journal")
    n = len(one.done)
    one.close()  # while the disk is full
    assert contents(small_disk / "0.journal").examples.numbers[1].tolist() == list(range(n))


def test_in_shared_memory_a_journal_stays_small_and_names_the_remedy_when_that_is_full(
    small_disk, opened, monkeypatch
):
    monkeypatch.setattr(module, "_USUAL_IN_MEMORY", 2 << 20)
    one = opened(small_disk / "0.journal", durability=WORKER)
    for n in range(4000):  # 36 MB
        one.store.submit(put(n % 40, n), tickets=[n])
        if n % 100 == 99:
            one.until_done(n + 1)
    assert (small_disk / "0.journal").stat().st_size == 2 << 20
    fill(small_disk / "ballast")
    n = 4000
    while not one.store.fault:  # what lives does not fit any more
        one.store.submit(put(n, n), tickets=[n])
        n += 1
        one.until_done_or_fault(n)
    assert "No space left on device" in one.store.fault
    assert "in a container: --shm-size" in one.store.fault
    (small_disk / "ballast").unlink()
    one.until_done(n)
    one.close()
    lines = set(contents(small_disk / "0.journal").examples.lines.tolist())
    assert lines == {*range(40), *range(4000, n)}


# Damage


def refused(path: Path, match: str) -> None:
    """It is refused each time, by name, and left as it was."""
    files = {f: f.read_bytes() for f in path.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=match) as caught:
            contents(path)
        assert str(path) in str(caught.value)
        assert f"resume from a snapshot; or, to begin anew: mv {path.parents[2]} " in str(
            caught.value
        )
        kept = {f: f.read_bytes() for f in files if f.exists()}
        assert kept == files


def test_a_file_of_somebody_else_is_refused_and_not_written_to(tmp_path):
    path = tmp_path / "0.journal"
    path.write_text("something else " * 1000)
    refused(path, "it is no journal of a headrace server")


def test_a_file_and_its_copy_are_of_one_owner_alone(tmp_path, opened):
    path, copy, owner = tmp_path / "0.journal", tmp_path / "copy", "partition 0 of feed 'speech'"
    for tokens in ([1], [2]):  # in the first file, and in one that was there
        one = opened(path, owner=owner)
        one.commit(Change(tokens=tokens))
        assert one.copy(copy) == ""
        one.close()
    for file in (path, copy):
        kept = file.read_bytes()
        with pytest.raises(
            JournalDamaged, match="is the journal of partition 0 of feed 'speech', u"
        ):
            opened(file, owner="partition 1 of feed 'speech'")
        assert file.read_bytes() == kept
        assert opened(file, owner=owner).store.load().tokens == [1, 2]


# Copies


def test_a_copy_is_of_one_moment_while_commits_go_on(tmp_path, opened):
    one, halt, n = opened(tmp_path / "0.journal"), threading.Event(), 0
    submitted, room = 0, threading.Semaphore(0)  # what is submitted beside one copy has a bound

    def submit() -> None:
        nonlocal submitted
        while room.acquire() and not halt.is_set():
            value = b"%d" % (submitted + 1)
            one.store.submit(Change(meta={"a": value}))
            one.store.submit(Change(meta={"b": value}, chunks={submitted: b"x" * 500}))
            submitted += 1
            if submitted % 50 == 0:
                time.sleep(0)

    other = threading.Thread(target=submit)
    other.start()
    try:
        for number in range(5):
            before = submitted
            room.release(2000)
            assert one.copy(tmp_path / f"copy-{number}.journal") == ""
            saved = contents(tmp_path / f"copy-{number}.journal")
            n = len(saved.chunks)
            assert n >= before
            assert int(saved.meta.get("b", 0)) == n
            assert int(saved.meta.get("a", 0)) in (n, n + 1)
    finally:
        halt.set()
        room.release()
        other.join()
    assert one.store.take_done() == []  # a copy is nobody's ticket


def failing(number: int) -> Callable[..., Any]:
    def fails(*arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fails


def test_a_copy_that_can_not_be_made_leaves_no_file_and_the_store_goes_on(
    tmp_path, opened, monkeypatch
):
    one = opened(tmp_path / "0.journal")
    assert "nowhere" in one.copy(tmp_path / "nowhere" / "copy.journal")
    (tmp_path / "of").mkdir()
    monkeypatch.setattr(journal_file.os, "replace", failing(errno.EROFS))
    assert "Read-only" in one.copy(tmp_path / "of" / "copy.journal")
    assert [*(tmp_path / "of").iterdir()] == []
    monkeypatch.undo()
    one.commit(Change(meta={"a": b"1"}))


def test_a_copy_that_waits_for_a_store_that_fails_fails_with_it(tmp_path, opened, held):
    """1. A record is written; 2. one that can not be gathers, and a copy; 3. both are tried."""
    one, faults = opened(tmp_path / "0.journal"), list[str]()
    one.store.submit(Change(tokens=[1]))
    assert held.began.wait(PATIENCE_S)
    one.store.submit(Change(meta={"bad": object()}))  # type: ignore[dict-item]
    one.store.copy(tmp_path / "copy.journal", faults.append)
    held.go.set()
    one.until(lambda: bool(one.done))
    one.done.pop()()
    assert len(faults) == 1 and not (tmp_path / "copy.journal").exists()


def test_a_new_file_that_a_crash_cut_short_is_removed(tmp_path, opened):
    opened(tmp_path / "0.journal").close()
    (tmp_path / "0.journal.new").write_bytes(bytes(100))
    opened(tmp_path / "0.journal")
    assert [path.name for path in tmp_path.iterdir()] == ["0.journal"]


# The end


def test_close_commits_what_has_gathered_and_later_changes_are_refused(tmp_path, held):
    path = tmp_path / "0.journal"
    one = Opened(path)
    for n in range(50):
        one.store.submit(Change(tokens=[n]), tickets=[n])
    held.go.set()
    one.close()
    one.close()
    assert one.store.take_done() == list(range(50))
    with pytest.raises(ServerError, match=r"0\.journal is closed"):
        one.store.submit(Change())
    assert contents(path).tokens == list(range(50))


def test_the_newest_tokens_stay_for_any_order_of_their_numbers(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(module, "TOKENS", 100)
    chance, tokens = random.Random(2), list[int]()
    for _ in range(4):
        one = opened(tmp_path / "0.journal")
        assert one.store.load().tokens == tokens[-100:]
        for _ in range(30):
            some = [chance.randrange(2**62) for _ in range(chance.randrange(9))]
            one.commit(Change(tokens=some))
            tokens += some
        one.close()
    assert len(tokens) > 300


def test_a_table_in_shared_memory_is_written_in_pieces_that_leave_the_interpreter_to_others(
    tmp_path, opened, monkeypatch
):
    rests: list[float] = []
    clock = SimpleNamespace(sleep=rests.append, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)
    path = tmp_path / "0.journal"
    one = opened(path, durability=WORKER)
    for n in range(400):
        one.commit(put(n % 100, n))
    assert len(rests) > 10
    one.close()
    file, records = JournalFile.open(path, False)
    file.close()
    assert len(records) > 10, "900 kB in pieces of 64 kB or more"
    assert contents(path).examples.numbers[1].tolist() == [*range(300, 400)]
