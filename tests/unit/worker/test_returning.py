"""A life of an owner waits for the trainers of the life before, and for a moment only."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_server.core.end_of_feed import RETURN_S
from headrace_server.worker.returning import Returning


def begun(path: Path, now: float = 0.0) -> Returning:
    life = Returning(path)
    life.opened(now)
    return life


def test_a_life_waits_until_all_trainers_of_the_last_one_are_back_or_were_refused(tmp_path: Path):
    path = tmp_path / "trainers-0"
    first = begun(path)
    assert first.all_back(0.0)
    for nonce in (b"a", b"b", b"c", b"d"):
        first.joined(nonce)
    first.joined(b"a")
    first.left(b"c")
    for _ in range(2):  # a life that dies amid this waits again
        life = begun(path)
        assert not life.all_back(RETURN_S / 2)
        life.joined(b"a")
        assert not life.all_back(RETURN_S / 2)
        life.joined(b"b")
        assert not life.all_back(RETURN_S / 2)
    life.left(b"d")
    assert life.all_back(RETURN_S / 2)
    assert not begun(path).all_back(0.0)


def test_trainers_that_do_not_come_back_are_waited_for_a_moment_after_the_feeds_are_open(
    tmp_path: Path,
):
    path = tmp_path / "trainers-0"
    begun(path).joined(b"a")
    life = Returning(path)
    assert not life.all_back(1e6)
    life.opened(1e6)
    assert not life.all_back(1e6 + RETURN_S / 2)
    assert life.all_back(1e6 + RETURN_S)
    assert begun(path).all_back(0.0), "the next one does not wait for them"


@pytest.mark.parametrize("text", ["some", "-", "+zz\n", "+\n", ""])
def test_a_file_that_can_not_be_read_or_written_counts_as_none(tmp_path: Path, text: str):
    (tmp_path / "trainers-0").write_text(text)
    assert begun(tmp_path / "trainers-0").all_back(0.0)
    life = begun(tmp_path / "gone" / "trainers-0")
    life.joined(b"x")
    assert life.all_back(0.0)
