"""A session ends when nothing of its trainer is left, and no sooner."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_proto.errors import LimitExceeded
from headrace_server.worker.sessions import Session, SessionTable, remove_files
from tests.nursery import WarmPopen
from tests.shortage import no_descriptors


class Holder:
    """A trainer's end of the session file."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        fcntl.flock(self.fd, fcntl.LOCK_SH)
        self.proof = os.pread(self.fd, 64, 0)

    def let_go(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    held: list[Holder] = []
    yield held
    for holder in held:
        holder.let_go()


def local(table: SessionTable, holders: list[Holder], name: bytes = b"n") -> tuple[Session, Holder]:
    """A session whose trainer shares the host."""
    session = table.open(name, "feed", b"connection " + name)
    holders.append(Holder(session.path))
    table.attach(session, holders[-1].proof)
    return session, holders[-1]


def test_a_session_has_a_file_of_16_random_bytes_for_its_owner_alone(tmp_path: Path):
    table = SessionTable(tmp_path)
    first, second = table.open(b"a", "f", b"1"), table.open(b"b", "f", b"2")
    assert (first.number, second.number) == (1, 2)
    assert first.path.read_bytes() == first.proof and len(first.proof) == 16
    assert first.proof != second.proof
    assert first.path.stat().st_mode & 0o777 == 0o600
    assert first.path == tmp_path / "trainer-1-0"


def test_a_session_for_which_shared_memory_has_no_room_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no room for 16 bytes"):
        SessionTable(tmp_path).open(b"a", "f", b"1")
    assert not list(tmp_path.iterdir())


def test_sessions_of_several_owners_in_one_directory_differ_and_each_removes_its_own(
    tmp_path: Path,
):
    tables = [SessionTable(tmp_path, owner=owner, owners=3) for owner in range(3)]
    numbers = [table.open(b"%d" % n, "f", b"%d" % n).number for n in range(2) for table in tables]
    assert numbers == [1, 2, 3, 4, 5, 6]
    remove_files(tmp_path, 1, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"trainer-{number}-0" for number in (1, 3, 4, 6)
    ]
    for table in tables:
        table.close()


def test_a_session_of_the_next_life_of_an_owner_has_another_number_and_another_file(tmp_path: Path):
    """So neither a late message of the life before counts, nor a greeting with what came in it."""
    tables = [SessionTable(tmp_path, owner=1, owners=2, life=life) for life in range(2)]
    before, now = (table.open(b"a", "f", b"1") for table in tables)
    assert tables[1].find(before.number, b"1") is None and before.path != now.path
    remove_files(tmp_path, 1, 2)
    assert not list(tmp_path.iterdir())


def test_a_trainer_that_sends_the_content_of_the_file_and_holds_its_lock_shares_the_host(
    tmp_path: Path, holders: list[Holder]
):
    session, _ = local(SessionTable(tmp_path), holders)
    assert session.local


def test_a_trainer_that_sends_other_content_or_holds_no_lock_does_not_share_the_host(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    session = table.open(b"n", "feed", b"c")
    table.attach(session, session.proof)
    assert not session.local  # nobody holds the lock
    holders.append(Holder(session.path))
    for proof in (b"", session.proof[:-1], bytes(16), session.proof + b"x"):
        table.attach(session, proof)
        assert not session.local


def test_the_death_of_a_local_trainer_whose_lock_is_free_is_reported_once(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    session, holder = local(table, holders)
    assert list(table.dead()) == []
    holder.let_go()
    assert list(table.dead()) == [session] and session.present
    assert list(table.dead()) == [] and table.get(session.number) is None
    assert not session.path.exists()


def test_a_lock_dies_with_its_process_however_that_ends(tmp_path: Path):
    table = SessionTable(tmp_path)
    session = table.open(b"n", "feed", b"c")
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'rb'); fcntl.flock(f, fcntl.LOCK_SH);"
        "print(f.read().hex(), flush=True); sys.stdin.read()"
    )
    trainer = WarmPopen(
        [sys.executable, "-c", code, str(session.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    table.attach(session, bytes.fromhex(trainer.stdout.readline()))
    assert session.local and list(table.dead()) == []
    trainer.kill()
    trainer.communicate()
    assert list(table.dead()) == [session]


def test_a_local_trainer_that_left_may_still_have_memory_mapped(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    session, holder = local(table, holders)
    table.leave(session)
    assert list(table.dead()) == [] and table.present() == []
    assert table.get(session.number) is session
    assert table.find(session.number, session.identity) is None
    assert table.named("feed", b"n") is None
    holder.let_go()
    assert list(table.dead()) == [session] and not session.present and not session.local


def test_a_trainer_elsewhere_is_dead_as_soon_as_it_left(tmp_path: Path):
    table = SessionTable(tmp_path)
    session = table.open(b"n", "feed", b"c")
    assert list(table.dead()) == []
    table.leave(session)
    assert list(table.dead()) == [session] and not session.path.exists()


def test_sessions_are_bounded_past_ones_with_mapped_memory_among_them(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path, max_trainers=3)
    kept = [local(table, holders, name) for name in (b"1", b"2", b"3")]
    table.leave(kept[0][0])
    with pytest.raises(LimitExceeded, match=r"3 trainers.*max_trainers=3"):
        table.open(b"4", "feed", b"x")
    assert len(list(tmp_path.iterdir())) == 3
    kept[0][1].let_go()
    assert list(table.dead()) == [kept[0][0]]
    assert table.open(b"4", "feed", b"x").number == 4


def test_locks_are_looked_at_without_opening_a_file(tmp_path: Path, holders: list[Holder]):
    table = SessionTable(tmp_path)
    session, holder = local(table, holders)
    with no_descriptors():
        assert list(table.dead()) == []
        with pytest.raises(OSError, match="Too many open files"):
            table.open(b"m", "feed", b"another connection")
        holder.let_go()
        assert list(table.dead()) == [session] and not session.path.exists()
    assert table.open(b"m", "feed", b"another connection").number > session.number
    table.close()


def test_a_trainer_that_has_left_costs_a_descriptor_only_while_its_memory_may_be_mapped(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    gc.collect()  # files of tests before this one
    before = len(os.listdir("/proc/self/fd"))
    table.leave(table.open(b"far", "feed", b"c"))
    assert len(os.listdir("/proc/self/fd")) == before
    near, holder = local(table, holders)
    table.leave(near)
    assert len(os.listdir("/proc/self/fd")) == before + 2  # the holder has one
    holder.let_go()
    assert len(list(table.dead())) == 2
    assert len(os.listdir("/proc/self/fd")) == before
    table.close()


def test_the_error_names_the_limit_of_trainers_where_it_is_not_the_option(tmp_path: Path):
    table = SessionTable(tmp_path, 1, "the limit of open files is 100")
    table.open(b"a", "f", b"a")
    with pytest.raises(LimitExceeded, match=r"1 trainers.*the limit of open files is 100"):
        table.open(b"b", "f", b"b")
    table.close()
