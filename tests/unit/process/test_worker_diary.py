"""A diary is read as it was written, also when its writer is dead, and beats are counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.process.worker_diary import (
    STARTING,
    Diary,
    DiaryFile,
    DiaryReader,
    long_inside,
)


def test_an_entry_names_the_function_of_the_user_until_it_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    diary_file = DiaryFile(tmp_path / "diary")
    diary = Diary(diary_file.path)
    diary.begin("speech", 3)
    diary.enter("features:Speech.augment")
    now += 0.9
    entry = DiaryReader(diary_file.path).read()
    assert entry.describe() == ("it was working on feed 'speech', partition 3, in `Speech.augment`")
    assert long_inside(2, entry.inside, entry.since) == ""
    diary.enter("features:Speech.augment")  # its next row
    now += 11.1
    assert long_inside(2, diary.inside, diary.since) == long_inside(2, entry.inside, entry.since)
    assert long_inside(2, *_inside(diary_file)) == (
        "worker 2 has been in `Speech.augment` for 12 s"
    )
    diary.enter("")
    assert long_inside(2, *_inside(diary_file)) == ""
    diary.enter("f" * 9999)
    assert _inside(diary_file)[0] == "f" * 512
    diary.begin("speech", 3)
    assert _inside(diary_file)[0] == ""


def _inside(diary_file: DiaryFile) -> tuple[str, float]:
    entry = diary_file.read()
    return entry.inside, entry.since


def test_entries_of_a_killed_process_are_there(tmp_path: Path):
    diary_file = DiaryFile(tmp_path / "diary")
    code = (
        "import os, signal, sys, numpy as np\n"
        "from headrace_server.process.worker_diary import Diary\n"
        "diary = Diary(sys.argv[1])\n"
        "diary.begin('f', 1)\n"
        "diary.reading(np.arange(4096), 'w' * 9999)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, diary_file.path]).returncode == -9
    entry = diary_file.read()
    assert entry.rows == tuple(range(4096)) and set(entry.where) == {"w"}


def test_a_file_system_without_room_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ServerError, match=r"diary: there is no room for .* bytes: .*No space"):
        DiaryFile(tmp_path / "diary")


def test_totals_outlive_a_worker_and_its_entries_do_not(tmp_path: Path):
    diary_file = DiaryFile(tmp_path / "diary", 3)
    code = (
        "import os, sys; from headrace_server.process.worker_diary import Diary\n"
        "diary = Diary(sys.argv[1]); diary.idle(); diary.totals[9] = 2.5; os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, diary_file.path]).returncode == -9
    diary_file.begin()
    assert diary_file.read().doing == STARTING
    assert Diary(diary_file.path).totals.tolist() == [0.0] * 9 + [2.5]
