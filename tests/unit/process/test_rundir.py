"""A run directory lives as long as the process that locked it, however that ends."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

from headrace_server.files.durable_file import locked
from headrace_server.process.rundir import RunDirectory, is_locked, sweep


def test_a_run_directory_is_its_owners_alone_and_locked(tmp_path):
    directory = RunDirectory(str(tmp_path))
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory.path / "lock").stat().st_mode) == 0o600
    assert directory.path.name.startswith(f"headrace-{os.getuid()}-{os.getpid()}-")
    assert is_locked(directory.path / "lock")
    directory.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_start_that_was_killed_left_is_removed_once_no_start_can_still_make_it(tmp_path):
    drafts = [tmp_path / f".headrace-{os.getuid()}-1-0000000{n}" for n in range(4)]
    for draft in drafts:
        draft.mkdir()
    (drafts[1] / "lock").touch()
    with locked(drafts[2] / "lock"):
        for draft in drafts[:3]:
            os.utime(draft, (0, time.time() - 2 * 3600))
        assert sorted(sweep(tmp_path)) == drafts[:2]
    assert sorted(tmp_path.iterdir()) == drafts[2:]


def test_nothing_but_run_directories_of_this_user_is_swept(tmp_path):
    names = [
        f"headrace-{os.getuid()}-notes",
        f"headrace-{os.getuid() + 1}-1-00000000",
        f".headrace-{os.getuid()}-1-00000000",
        f"headrace-{os.getuid()}-1-00000000-backup",
    ]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    link = tmp_path / f"headrace-{os.getuid()}-2-00000000"
    link.symlink_to(elsewhere)
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names, "elsewhere", link.name}
    assert (elsewhere / "kept").exists()


def test_starts_at_the_same_time_do_not_remove_each_other(tmp_path):
    lost: list[Path] = []
    gate = threading.Barrier(8)

    def start_and_end() -> None:
        gate.wait()
        for _ in range(40):
            directory = RunDirectory(str(tmp_path))
            (directory.path / "slab-0-0").touch()
            sweep(tmp_path)
            if not (directory.path / "slab-0-0").exists():
                lost.append(directory.path)
            directory.close()

    threads = [threading.Thread(target=start_and_end) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == [] and list(tmp_path.iterdir()) == []
