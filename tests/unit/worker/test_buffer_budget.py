"""Buffers of sessions are bounded, end with their sessions, and are never needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_proto.state_buffers import MOST, MOST_BYTES, file_bytes, mapped
from headrace_server.worker import reception as buffer_budget
from headrace_server.worker.reception import BufferBudget
from headrace_server.worker.sessions import Session, SessionTable

EACH = 4096


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SessionTable]:
    table = SessionTable(tmp_path)
    yield table
    table.close()


def opened(table: SessionTable, name: bytes = b"n") -> Session:
    return table.open(name, "feed", b"connection " + name)


def test_a_trainer_gets_the_most_buffers_in_the_file_of_its_session_to_read_only_here(table):
    session = opened(table)
    BufferBudget(1 << 30).open(session, EACH)
    assert len(session.buffers) == MOST and session.buffers[0].readonly
    assert session.path.stat().st_size == file_bytes(MOST, EACH)
    # All pages are there: neither end can run out of shared memory later.
    assert session.path.stat().st_blocks * 512 >= MOST * EACH
    assert session.path.read_bytes()[:16] == session.proof
    mapped(session.file, EACH, writable=True)[3][:] = 5
    assert bytes(session.buffers[3]) == b"\5" * EACH


@pytest.mark.parametrize(
    ("most_bytes", "each", "count"),
    [
        (1 << 30, MOST_BYTES // 4, 3),  # the first page of the file counts, too
        (1 << 30, MOST_BYTES, 0),
        (file_bytes(5, EACH), EACH, 5),
        (file_bytes(1, EACH) - 1, EACH, 0),
        (1 << 30, 0, 0),
    ],
)
def test_they_are_as_many_as_fit(table, most_bytes: int, each: int, count: int):
    session = opened(table)
    BufferBudget(most_bytes).open(session, each)
    assert len(session.buffers) == count
    assert session.path.stat().st_size == (file_bytes(count, each) if count else 16)


def test_all_sessions_share_a_bound_and_what_one_leaves_others_get(table):
    budget = BufferBudget(file_bytes(MOST, EACH) + file_bytes(2, EACH))
    first, second, third, fourth = (opened(table, name) for name in (b"1", b"2", b"3", b"4"))
    for session in (first, second, third, first):
        budget.open(session, EACH)
    assert [len(session.buffers) for session in (first, second, third)] == [MOST, 2, 0]
    kept = first.buffers[0]
    budget.close(first)
    budget.open(fourth, EACH)
    assert len(first.buffers) == 0 and len(fourth.buffers) == MOST
    assert len(bytes(kept)) == EACH  # a save that waits for its partition is still readable


def test_no_more_than_some_sessions_have_any_since_each_takes_a_descriptor(table, monkeypatch):
    monkeypatch.setattr(buffer_budget, "_MOST_SESSIONS", 1)
    budget, names = BufferBudget(1 << 30), (b"1", b"2", b"3")
    first, second, third = (opened(table, name) for name in names)
    budget.open(first, EACH)
    budget.open(second, EACH)
    assert first.buffers and not second.buffers
    budget.close(first)
    budget.open(third, EACH)
    assert third.buffers


@pytest.mark.parametrize("step", ["posix_fallocate", "mapped"])
def test_a_session_without_room_for_buffers_has_none_and_leaves_nothing(table, monkeypatch, step):
    """Not at a later attach either: its trainer may map the file just before it was cut again."""

    def full(*of: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session, budget = opened(table), BufferBudget(1 << 30)
    with monkeypatch.context() as patch:
        patch.setattr(os if step == "posix_fallocate" else buffer_budget, step, full)
        budget.open(session, EACH)
    assert not session.buffers and session.path.stat().st_size == 16
    budget.open(session, EACH)
    assert not session.buffers and session.path.stat().st_size == 16
    other = opened(table, b"other")
    budget.open(other, EACH)
    assert len(other.buffers) == MOST
