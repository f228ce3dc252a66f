"""An error of a full disk names the file, the room that is left, and the remedy.

A small file system of its own is filled to the last page; whatever the server writes is then
written there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import LimitExceeded
from headrace_server.cli import main
from headrace_server.cli.keygen import _write
from headrace_server.files.durable_file import write_durably
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile
from headrace_server.journal.journal import Journal
from headrace_server.journal.restoring import prepare
from headrace_server.journal.snapshots import Shelf
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.making.slab import Slab
from headrace_server.pipeline.sources import scalar
from headrace_server.process.config import FeedConfig
from headrace_server.process.rundir import RunDirectory
from headrace_server.process.worker_diary import DiaryFile
from headrace_server.reading.conversion import ArrowPart
from headrace_server.server.arguments import index_directory
from headrace_server.shaping.stored_state import Change
from headrace_server.worker.sessions import SessionTable
from tests.patience import eventually
from tests.unit.changes import Example, examples_of

PAGE = 4096


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system without room for one more byte; names it still has room for."""
    disk = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode().strip()}")
    try:
        (disk / "feeds" / "f").mkdir(parents=True)
        (disk / "feeds" / "f" / "feed.json").write_text("{}" + " " * 3 * PAGE)
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def full(disk: Path) -> Iterator[Path]:
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(PAGE))
    yield disk
    ballast.unlink()


def snapshot(disk: Path) -> None:
    shelf = Shelf(disk)
    name, _ = shelf.begin("f")
    shelf.finish("f", name, 1)


def taken_back(disk: Path) -> None:
    state = StateDirectory(disk)
    try:
        feed = FeedConfig("f", hs.from_examples([{"a": 1}]).batch(1).declaration(), (), 1)
        prepare(state.path, feed, disk / "feeds" / "f", "s")
    finally:
        state.close()


def converted(disk: Path) -> None:
    part = ArrowPart(disk / "part-00000.arrow", {"a": scalar("int64").field})
    try:
        part.finish()
    finally:
        part.drop()


def session(disk: Path) -> None:
    SessionTable(disk, 9).open(b"n" * 16, "f", b"who")


@pytest.mark.parametrize(
    ("write", "names"),
    [
        (lambda disk: write_durably(disk / "small", "x" * 99), "small: .* 99 bytes"),
        (snapshot, r"snapshots/f/.*part/feed\.json: .*bytes.*keep_snapshots"),
        (taken_back, r"feeds/\.f\.new/feed\.json: .* bytes"),
        (converted, r"part-00000\.arrow\.part: .*run the conversion again"),
        (session, "trainer-1-0: .* 16 bytes.*--shm-size"),
        (lambda disk: DiaryFile(disk / "diary"), "diary: .* bytes.*--shm-size"),
        (lambda disk: Journal(disk / "0.journal", "power"), r"0\.journal: "),
        (lambda disk: _write(disk / "a.secret", "secret"), r"a\.secret: .* 6 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_written_names_its_file_the_room_and_the_remedy(
    full: Path, write: Callable[[Path], Any], names: str
) -> None:
    with pytest.raises(Exception, match=names) as caught:
        write(full)
    text = str(caught.value)
    assert str(full) in text and re.search(r"\b\d+ bytes free: make ", text), text


def test_no_part_of_a_conversion_is_left_when_its_end_does_not_fit(full: Path) -> None:
    with pytest.raises(OSError, match="no room"):
        converted(full)
    assert not list(full.glob("part-*"))


def test_an_index_that_does_not_fit_is_kept_in_memory_and_said_where_it_should_be(
    full: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = IndexCache(str(full / "index"))
    with caplog.at_level(logging.WARNING):
        found = cache.get(DataFile("/data/a", 1, "s"), "k", lambda: np.arange(5 * PAGE // 8))
    assert len(found) == 5 * PAGE // 8
    (line,) = caplog.messages
    assert str(full / "index") in line and f"for {5 * PAGE} bytes" in line and "make room" in line


def test_a_slab_that_does_not_fit_says_how_much_there_is(full: Path) -> None:
    with pytest.raises(LimitExceeded, match=r"segment of 65536 bytes in .*: .* 0 bytes free: make"):
        Slab(full, 0, 0, 1 << 20, 1 << 16).allocate(PAGE)


def copied(store: Journal, target: Path) -> str:
    """Wait for a copy, and return its fault."""
    faults: list[str] = []
    store.copy(target, faults.append)
    while not faults:
        for answer in store.take_done():
            answer()
    return faults[0]


def test_commits_that_wait_for_room_say_so_and_a_copy_that_does_not_fit_too(disk: Path) -> None:
    store = Journal(disk / "1.journal", "process")
    try:
        some = [Example(n, n, 0, 0, 0, 1, 0, (0, b""), bytes(9000)) for n in range(40)]
        store.submit(Change(put=examples_of(some)))
        ballast = disk / "ballast"
        copied(store, disk / "early.journal")  # after it all is committed
        (disk / "early.journal").unlink()
        with open(ballast, "wb") as out:
            os.posix_fallocate(out.fileno(), 0, _free(disk) - 8 * PAGE)
        fault = copied(store, disk / "copy.journal")
        assert re.search(r"copy\.journal: there is no room: .* bytes free: make room", fault)
        assert not (disk / "copy.journal").exists()
        ballast.unlink()
    finally:
        store.close()


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def test_a_directory_for_indexes_and_a_run_directory_name_the_place_without_inodes(
    tmp_path: Path,
) -> None:
    place = tmp_path / "few"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=1", "tmpfs", str(place)],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(OSError, match=r"few/index: .* no room for another file \(inodes\)"):
            index_directory(place)
        with pytest.raises(OSError, match=r"few/\.headrace-.* \(inodes\): make it larger"):
            RunDirectory(str(place))
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_state_disk_shows_everywhere_and_no_longer_once_there_is_room(
    disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1. The disk fills up while nobody trains, so no commit fails.  2. Something is deleted."""
    pipeline = hs.from_examples([{"i": i} for i in range(8)]).batch(4)
    state, ballast = disk / "state", disk / "ballast"
    with hs.run(pipeline, state_dir=state, durability="process", http="127.0.0.1:0") as server:

        def page(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"{server.http_address}{path}", timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        assert page("/healthz") == (200, "serving\n")
        try:
            with open(ballast, "wb", buffering=0) as out, contextlib.suppress(OSError):
                while True:
                    out.write(bytes(PAGE))
            eventually(lambda: page("/healthz")[0] == 503)
            text = page("/healthz")[1]
            assert f"the disk of state_dir='{state}' is full (0 bytes are free" in text
            assert page("/livez")[0] == page("/readyz")[0] == 200
            assert "headrace_state_fault 1.0\n" in page("/metrics")[1]
            feed = json.loads(page("/status.json")[1])["feeds"]["default"]
            assert feed["verdict"]["level"] == "bad" and "is full" in feed["verdict"]["text"]
            assert main(["status", "--http", server.http_address or ""]) == 1
            assert "is full (0 bytes are free" in capsys.readouterr().out
        finally:
            ballast.unlink()
        eventually(lambda: page("/healthz")[0] == 200)
