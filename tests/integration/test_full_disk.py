"""An error of a full disk names the file, the room that is left, and the remedy.

A small file system of its own is filled to the last page; whatever the server writes is then
written there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace_server as hs
from headrace_proto.errors import LimitExceeded
from headrace_server.cli import main
from headrace_server.cli.keygen import _write
from headrace_server.files.durable_file import write_durably
from headrace_server.journal.journal import Journal
from headrace_server.journal.restoring import prepare
from headrace_server.journal.snapshots import Shelf
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.making.slab import Slab
from headrace_server.pipeline.sources import scalar
from headrace_server.process.config import FeedConfig
from headrace_server.process.worker_diary import DiaryFile
from headrace_server.reading.conversion import ArrowPart
from headrace_server.server import crew
from headrace_server.worker.sessions import SessionTable
from tests.patience import PATIENCE_S, eventually
from tests.shortage import small_disk

from .serving import connect, kill_worker
from .test_watching import get

PAGE = 4096


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system without room for one more byte; names it still has room for."""
    with small_disk(tmp_path_factory.mktemp("disk"), "8m") as disk:
        (disk / "feeds" / "f").mkdir(parents=True)
        (disk / "feeds" / "f" / "feed.json").write_text("{}" + " " * 3 * PAGE)
        yield disk


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
def test_what_can_not_be_written_names_its_file_the_room_and_the_remedy(full, write, names):
    with pytest.raises(Exception, match=names) as caught:
        write(full)
    text = str(caught.value)
    assert str(full) in text and re.search(r"\b\d+ bytes free: make ", text), text


def test_a_slab_that_does_not_fit_says_how_much_there_is(full):
    with pytest.raises(LimitExceeded, match=r"for 4096 more bytes in .*: .* 0 bytes free: make"):
        Slab(full, 0, 0, 1 << 20, 1 << 16).allocate(PAGE)


def test_a_full_state_disk_shows_everywhere_and_no_longer_once_there_is_room(disk, capsys):
    """1. The disk fills up while nobody trains, so no commit fails.  2. Something is deleted."""
    pipeline = hs.from_examples([{"i": i} for i in range(8)]).batch(4)
    state, ballast = disk / "state", disk / "ballast"
    with hs.run(pipeline, state_dir=state, durability="process", http="127.0.0.1:0") as server:

        def page(path: str) -> tuple[int, str]:
            status, body = get(server, path)
            return status, body.decode()

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
            assert main(["status", "--address", server.address]) == 1
            assert "is full (0 bytes are free" in capsys.readouterr().out
        finally:
            ballast.unlink()
        eventually(lambda: page("/healthz")[0] == 200)


def test_an_owner_that_dies_while_the_disk_is_full_goes_on_when_there_is_room(
    tmp_path, monkeypatch
):
    """The full disk can not store its term; this does not use up the owner's restarts."""
    raise_term, tried = StateDirectory.raise_term, threading.Semaphore(0)
    refusals = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) for _ in range(3)]

    def raised(state: StateDirectory, *more: int) -> int:
        tried.release()
        if refusals:
            raise refusals.pop()
        return raise_term(state, *more)

    monkeypatch.setattr(crew, "_RETRY_S", 0.05)
    pipeline = hs.from_examples([{"i": i} for i in range(400)]).batch(4)
    with hs.run(pipeline, state_dir=tmp_path, partitions=2, workers=2) as server:
        monkeypatch.setattr(StateDirectory, "raise_term", raised)
        with connect(server) as feed:
            rows = next(feed)["i"].tolist()
            kill_worker(server, 1)
            for _ in range(4):
                assert tried.acquire(timeout=PATIENCE_S)
            for batch in feed:
                rows += batch["i"].tolist()
        assert sorted(rows) == list(range(400)) and not refusals
