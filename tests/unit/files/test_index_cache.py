"""Entries of the index cache: made once, mapped, never trusted when damaged."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace_proto.errors import LimitExceeded
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile
from tests.nursery import WarmPopen
from tests.patience import PATIENCE_S
from tests.shortage import no_descriptors

FILE = DataFile("/data/a", 10, "1")
INTEGERS = np.arange(100, dtype=np.int64)


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> np.ndarray:
        self.calls += 1
        return INTEGERS.copy()


def assert_same(got: np.ndarray) -> None:
    assert got.dtype == INTEGERS.dtype
    np.testing.assert_array_equal(got, INTEGERS)
    assert not got.flags.writeable


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (DataFile("/data/b", 10, "1"), "frames"),
        (DataFile("/data/a", 11, "1"), "frames"),
        (DataFile("/data/a", 10, "2"), "frames"),
        (FILE, "other"),
    ],
)
def test_another_file_version_or_kind_has_an_entry_of_its_own(tmp_path, file, kind):
    IndexCache(str(tmp_path)).get(FILE, "frames", Builder())
    build = Builder()
    IndexCache(str(tmp_path)).get(file, kind, build)
    assert build.calls == 1


def entry_of(directory: Path) -> Path:
    (path,) = directory.glob("*.idx")
    return path


def test_an_entry_changed_in_any_byte_is_built_again(tmp_path):
    IndexCache(str(tmp_path)).get(FILE, "frames", Builder())
    path = entry_of(tmp_path)
    sound = path.read_bytes()
    for at in (*range(0, len(sound), 5), *range(len(sound) - 8, len(sound))):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        build = Builder()
        assert_same(IndexCache(str(tmp_path)).get(FILE, "frames", build))
        assert build.calls == 1, at


def test_a_directory_that_can_not_be_written_costs_only_the_reuse(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    cache, build = IndexCache(str(blocked)), Builder()
    assert_same(cache.get(FILE, "frames", build))
    assert_same(cache.get(FILE, "frames", build))
    assert build.calls == 1


def test_an_entry_keeps_no_descriptor_and_a_lack_of_them_is_told(tmp_path):
    cache = IndexCache(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    kept = [cache.get(DataFile(f"/data/{i}", 10, "1"), "frames", Builder()) for i in range(9)]
    assert len(os.listdir("/proc/self/fd")) == before
    for there in (True, False):
        most = 0
        with no_descriptors():
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            text = (
                rf"\.idx can not be opened: .* all {most} .*raise the limit to {most + 32} or more"
            )
            with pytest.raises(LimitExceeded, match=text):
                cache.get(DataFile("/data/0" if there else "/new", 10, "1"), "frames", Builder())
    for integers in kept:
        assert_same(integers)


CHILD = """
import os, sys
import numpy as np
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile

def build():
    with open(sys.argv[2], "a") as log:
        log.write("built")
    return np.arange(100)

print("ready", flush=True)
sys.stdin.readline()
print(IndexCache(sys.argv[1]).get(DataFile("/data/a", 10, "1"), "frames", build).sum())
"""


def test_only_one_of_several_processes_builds_an_index(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", CHILD, str(tmp_path / "cache"), str(log)]
    children = [
        WarmPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate(timeout=PATIENCE_S)[0] for child in children] == ["4950\n"] * 3
    assert log.read_text() == "built"


def test_a_process_that_waits_for_a_builder_reports_progress(tmp_path):
    IndexCache(str(tmp_path)).get(FILE, "frames", Builder())
    (entry,) = tmp_path.glob("*.idx")
    entry.unlink()
    (lock,) = tmp_path.glob("*.lock")
    told: list[int] = []
    with open(lock) as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def heard(file: DataFile, done: int) -> None:
            told.append(done)
            if len(told) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        assert_same(IndexCache(str(tmp_path), heard).get(FILE, "frames", Builder()))
    assert told == [0, 0, 0, FILE.size]
