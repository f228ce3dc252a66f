"""A session ends when nothing of its trainer is left, and no sooner."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_proto.errors import LimitExceeded
from headrace_server.worker.sessions import Session, SessionTable


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


FEED: Any = SimpleNamespace(present={})


def local(table: SessionTable, holders: list[Holder], name: bytes = b"n") -> tuple[Session, Holder]:
    """A session whose trainer shares the host."""
    session = table.open(name, FEED, b"connection " + name)
    holders.append(Holder(session.path))
    table.attach(session, holders[-1].proof)
    return session, holders[-1]


def test_a_trainer_that_sends_other_content_or_holds_no_lock_does_not_share_the_host(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    session = table.open(b"n", FEED, b"c")
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


def test_a_local_trainer_that_left_may_still_have_memory_mapped(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    session, holder = local(table, holders)
    table.leave(session)
    assert list(table.dead()) == [] and table.present() == []
    assert table.get(session.number) is session
    assert session.identity not in table.by_connection
    assert b"n" not in FEED.present
    holder.let_go()
    assert list(table.dead()) == [session] and not session.present and not session.local


def test_sessions_are_bounded_past_ones_with_mapped_memory_among_them(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path, max_trainers=3)
    kept = [local(table, holders, name) for name in (b"1", b"2", b"3")]
    table.leave(kept[0][0])
    with pytest.raises(LimitExceeded, match=r"3 trainers.*max_trainers=3"):
        table.open(b"4", FEED, b"x")
    assert len(list(tmp_path.iterdir())) == 3
    kept[0][1].let_go()
    assert list(table.dead()) == [kept[0][0]]
    assert table.open(b"4", FEED, b"x").number == 4


def test_a_trainer_that_has_left_costs_a_descriptor_only_while_its_memory_may_be_mapped(
    tmp_path: Path, holders: list[Holder]
):
    table = SessionTable(tmp_path)
    gc.collect()  # files of tests before this one
    before = len(os.listdir("/proc/self/fd"))
    table.leave(table.open(b"far", FEED, b"c"))
    assert len(os.listdir("/proc/self/fd")) == before
    near, holder = local(table, holders)
    table.leave(near)
    assert len(os.listdir("/proc/self/fd")) == before + 2  # the holder has one
    holder.let_go()
    assert len(list(table.dead())) == 2
    assert len(os.listdir("/proc/self/fd")) == before
