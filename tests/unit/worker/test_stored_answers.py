"""Stores of a worker's partitions: the time of answers, and the owner of the files."""

from __future__ import annotations

import errno
import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace_proto.errors import ServerError
from headrace_proto.state_buffers import MOST
from headrace_server.shaping.stored_state import Change
from headrace_server.state.journal import Journal
from headrace_server.state.statedir import partition_path
from headrace_server.state.store import Store, StoreDamaged
from headrace_server.worker import commits
from headrace_server.worker.desk import Desk
from tests.nursery import WarmPopen
from tests.unit.lives import PATIENCE_S, Keeping

A, B = ("a", 0), ("b", 3)
Open = Callable[..., Keeping]


class Changed:
    """A partition with changes to store."""

    def __init__(self, *changes: Change) -> None:
        self.changes = list(changes)
        self.commits = self

    def take_changes(self) -> list[Change]:
        changes, self.changes = self.changes, []
        return changes


@pytest.fixture
def keeping() -> Iterator[Open]:
    made: list[Keeping] = []

    def open_(directory: Path, durability: str = "power", window: int = 64) -> Keeping:
        made.append(Keeping(directory, durability, window))
        return made[-1]

    yield open_
    for one in made:
        one.stores.close()


def test_a_trainer_whose_saves_are_all_in_one_record_has_state_buffers_left(
    tmp_path: Path, keeping: Open, monkeypatch: pytest.MonkeyPatch
):
    """For the saves that come while a disk writes the record."""
    monkeypatch.setattr(commits, "_GATHER_S", PATIENCE_S)
    one = keeping(tmp_path, "power", window=10 * MOST)
    one.stores.open(A)
    tokens = itertools.count()
    while not one.stores.due:
        one.stores.submit(A, Changed(Change(done=[0])), [next(tokens)])
    assert next(tokens) + 8 <= MOST


def test_a_commit_that_changes_nothing_yet_is_known_to_the_next_owner(
    tmp_path: Path, keeping: Open
):
    """In lanes without states it may wait for an earlier one; its answer does not."""
    one = keeping(tmp_path, "process")
    one.stores.open(A)
    one.stores.submit(A, Changed(), [70])
    one.stores.answer(A, "answer")
    assert one.write() == [] and one.sent == ["answer"]
    one.stores.close()
    two = keeping(tmp_path, "process")
    assert two.stores.open(A).tokens == [70] and not two.stores.lacks(A, 70)


def test_the_changes_of_a_commit_are_one_record_with_its_token(
    tmp_path: Path, keeping: Open, monkeypatch: pytest.MonkeyPatch
):
    """However soon the store's thread begins.  A kill between two would leave states alone."""
    start, append, records = Store._start, Journal.append, []

    def at_once(store: Store) -> None:
        start(store)
        while store._gathered:
            store._changed.wait(0.01)

    def appended(journal: Journal, parts: Sequence[Any]) -> int:
        records.append(parts)
        return append(journal, parts)

    monkeypatch.setattr(Store, "_start", at_once)
    monkeypatch.setattr(Journal, "append", appended)
    one = keeping(tmp_path)
    one.stores.open(A)
    one.stores.submit(A, Changed(Change(done=[1]), Change(done=[2])), [70])
    one.stores.answer(A, "stored")
    assert one.write() == [] and one.until_sent(1) == ["stored"]
    assert len(records) == 1


@pytest.mark.parametrize("parts", [0, 1, 2, 3])
def test_a_record_that_is_begun_is_written_first_and_whole_where_all_is_to_be_written(
    tmp_path: Path, keeping: Open, parts: int
):
    one = keeping(tmp_path, "process")
    one.stores.open(A)
    run = Changed(Change(done=[1]))
    one.stores.submit(A, run, [70])
    one.stores.answer(A, "first")
    for _ in range(parts):
        assert one.write(whole=False) == []
    run.changes.append(Change(done=[2]))
    one.stores.submit(A, run, [71])
    one.stores.answer(A, "second")
    assert one.write() == [] and one.sent == ["first", "second"]
    one.stores.close()
    saved = keeping(tmp_path, "process").stores.open(A)
    assert (saved.done, saved.tokens) == ([1, 2], [70, 71])


def test_a_message_is_sent_when_all_changes_before_it_are_committed(tmp_path: Path, keeping: Open):
    one = keeping(tmp_path)
    for name in (A, B):
        saved = one.stores.open(name)
        assert (saved.done, saved.tokens, saved.meta) == ([], [], {})
    one.stores.submit(A, Changed(Change(done=[1]), Change(done=[2])), [70])
    one.stores.answer(A, "first")
    assert one.write() == []
    one.stores.submit(A, Changed(Change(done=[4])))
    one.stores.note(A, "closing", b"cancel")
    one.stores.answer(A, "second")
    assert one.write() == [] and one.sent == [] and one.stores.writing
    assert one.until_sent(2) == ["first", "second"]
    one.stores.close()
    two = keeping(tmp_path)
    saved = two.stores.open(A)
    assert saved.done == [1, 2, 4] and saved.meta.pop("closing") == b"cancel"
    assert saved.meta.keys() == {"used"}
    assert two.stores.knows(A, 70) and not two.stores.knows(A, 71)
    assert two.stores.lacks(A, 71) and not two.stores.lacks(A, 70)
    assert not two.stores.open(B).done and not two.stores.knows(B, 70)


def test_a_commit_of_what_an_earlier_life_handed_out_is_known_to_this_one(
    tmp_path: Path, keeping: Open
):
    """A trainer is acknowledged by a later life, and greets that life again."""
    one = keeping(tmp_path, "process")
    one.stores.open(A)
    earlier, own = 70 | 1 << 32, 1
    one.stores.submit(A, Changed(Change(done=[1])), [earlier, own])
    assert one.write() == []
    assert one.stores.knows(A, earlier) and not one.stores.lacks(A, earlier)
    assert one.stores.lacks(A, earlier + 1) and not one.stores.knows(A, own)


def test_a_store_that_is_damaged_is_not_taken_over(tmp_path: Path, keeping: Open):
    path = partition_path(tmp_path, *A)
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(StoreDamaged, match="it is empty"):
        keeping(tmp_path).stores.open(A)


def test_a_journal_that_was_there_and_is_gone_is_refused_and_named(tmp_path: Path, keeping: Open):
    one = keeping(tmp_path)
    one.stores.open(A)
    one.stores.close()
    path = partition_path(tmp_path, *A)
    path.rename(tmp_path / "moved")
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"0\.journal is damaged: it is gone, and commits"):
            keeping(tmp_path).stores.open(A)
    assert not path.exists()
    (tmp_path / "moved").rename(path)
    keeping(tmp_path).stores.open(A)


def test_a_store_that_can_not_go_on_is_named_with_why_and_the_others_go_on(
    tmp_path: Path, keeping: Open, monkeypatch: pytest.MonkeyPatch
):
    one = keeping(tmp_path)
    for name in (A, B):
        one.stores.open(name)

    told = threading.Event()

    append = Journal.append

    def broken(journal: Journal, parts: Sequence[Any]) -> int:
        if b"of A" in b"".join(parts):
            assert told.wait(PATIENCE_S)
            raise RuntimeError("a fault of ours")
        return append(journal, parts)

    monkeypatch.setattr(Journal, "append", broken)
    one.stores.submit(A, Changed(Change(done=[1], meta={"name": b"of A"})))
    one.stores.answer(A, "never")
    assert one.write() == []
    told.set()
    one.wait()
    [(name, error)] = one.send_committed()
    assert name == A and isinstance(error, ServerError) and "a fault of ours" in str(error)
    one.stores.submit(A, Changed(Change(done=[2])))
    assert [name for name, _ in one.write()] == [A]
    one.stores.submit(B, Changed(Change(done=[1])))
    one.stores.answer(B, "well")
    while not one.sent:
        one.wait()
        assert [name for name, _ in one.send_committed()] == [A]
    assert one.sent == ["well"]


def test_a_full_disk_is_reported_as_the_reason_of_a_wait(
    tmp_path: Path, keeping: Open, monkeypatch: pytest.MonkeyPatch
):
    one = keeping(tmp_path)
    one.stores.open(A)
    append, room = Journal.append, threading.Event()

    def waits(journal: Journal, parts: Sequence[Any]) -> int:
        if not room.is_set():
            raise OSError(errno.EDQUOT, "the quota is used up")
        return append(journal, parts)

    monkeypatch.setattr(Journal, "append", waits)
    one.stores.submit(A, Changed(Change(done=[1])))
    one.stores.answer(A, "told")
    one.wait()
    assert one.send_committed() == [] and len(one.sent) == 1
    (*waiting, text), path = one.sent[0], partition_path(tmp_path, *A)
    assert waiting == [A[0], Desk.on_waiting, A[1]]
    assert text.startswith(f"nothing can be committed to {path}: the quota is used up")
    room.set()
    while one.sent[-1] != "told":
        one.wait()
        assert one.send_committed() == []


def test_a_store_belongs_to_one_process_and_the_next_waits_for_its_end(
    tmp_path: Path, keeping: Open, caplog: pytest.LogCaptureFixture
):
    code = (
        "import sys\n"
        "from headrace_server.worker.commits import Stores\n"
        "Stores(sys.argv[1], 'process', print, print).open(('a', 0))\n"
        "print('open', flush=True)\n"
        "sys.stdin.read(1)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipe = subprocess.PIPE
    with WarmPopen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin and other.stdout
        assert other.stdout.readline() == "open\n"

        class Ends:
            """Ends the other process as soon as it is waited for."""

            def filter(self, record: object) -> bool:
                other.kill()
                return True

        log = logging.getLogger("headrace.worker")
        ends = Ends()
        log.addFilter(ends)
        try:
            keeping(tmp_path).stores.open(A)
        finally:
            log.removeFilter(ends)
    assert "waits for the end of a worker of an earlier server" in caplog.text


def test_a_commit_that_is_older_than_those_that_are_remembered_may_have_been_kept(
    tmp_path: Path, keeping: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace_server.state.store.TOKENS", 3)
    one = keeping(tmp_path)
    one.stores.open(A)
    for token in (70, 74, 72, 75):
        one.stores.submit(A, Changed(Change(done=[token])), [token])
    one.stores.close()
    two = keeping(tmp_path)
    two.stores.open(A)
    assert [token for token in range(69, 78) if two.stores.lacks(A, token)] == [76, 77]
