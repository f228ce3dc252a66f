"""A feed's state is taken back whole or not at all, wherever the change is cut off."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_server.files.manifest import DataFile
from headrace_server.journal import restoring
from headrace_server.journal.feed_directory import ConfigChanged, check_feed
from headrace_server.journal.restoring import Resumption, finish, prepare, resumption
from headrace_server.journal.snapshots import Shelf
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.process.config import BEGINNING, FeedConfig

FILES = (DataFile("/data/a.csv", 10, "1"), DataFile("/data/b.csv", 20, "2"))


def feed(files: Any = FILES, batch_size: int = 4, paths: str = "/data/*.csv") -> FeedConfig:
    made = hs.read_csv(paths, {"x": hs.scalar("int64")}).batch(batch_size)
    return FeedConfig("plain", made.declaration(), files, 1)


@pytest.fixture
def directory(tmp_path: Path) -> Any:
    one = StateDirectory(tmp_path / "state")
    yield one
    one.close()


def stored(directory: StateDirectory, content: bytes) -> Path:
    """A feed's state, as a server leaves it."""
    check_feed(directory.path, feed())
    path = directory.path / "feeds" / "plain"
    (path / "0.journal").write_bytes(content)
    return path


def take_back(directory: StateDirectory, to: FeedConfig, source: Path, name: str) -> Resumption:
    prepare(directory.path, to, source, name)
    restoring.take_back(directory.path, [to.name])
    return resumption(directory.path, to.name)


def snapshot(directory: StateDirectory) -> tuple[Path, str]:
    shelf = Shelf(directory.path)
    name, part = shelf.begin("plain")
    shutil.copyfile(directory.path / "feeds" / "plain" / "0.journal", part / "0.journal")
    shelf.finish("plain", name, 1)
    return shelf.fetch("plain", name)[0], name


def test_a_snapshot_of_an_older_format_is_refused(directory, tmp_path):
    path = stored(directory, b"now")
    source = tmp_path / "snapshot"
    shutil.copytree(path, source)
    noted = (source / "feed.json").read_text()
    (source / "feed.json").write_text(noted.replace('"format": 5', '"format": 4'))
    with pytest.raises(ServerError, match=r"by another release .*format 4, this one reads 5"):
        prepare(directory.path, feed(), source, "s" * 8)
    assert (path / "0.journal").read_bytes() == b"now"


def test_the_state_is_that_of_the_snapshot_and_what_was_there_is_kept(directory):
    path = stored(directory, b"early")
    source, name = snapshot(directory)
    (path / "0.journal").write_bytes(b"late")
    (path / "0.journal-wal").write_bytes(b"journal of late")
    assert take_back(directory, feed(), source, name) == Resumption(1, name)
    assert (path / "0.journal").read_bytes() == b"early"
    assert sorted(p.name for p in path.iterdir()) == ["0.journal", "feed.json", "generation.json"]
    assert (path.parent / ".plain.old" / "0.journal").read_bytes() == b"late"
    assert resumption(directory.path, "plain") == Resumption(1, name)
    assert take_back(directory, feed(), source, name).generation == 2


def test_wherever_it_is_cut_off_the_next_start_finds_the_old_or_the_new(directory, monkeypatch):
    class Cut(Exception):
        pass

    path = stored(directory, b"early")
    source, name = snapshot(directory)
    outcomes = []
    for step in range(100):
        shutil.rmtree(path)
        stored(directory, b"late")
        left = step

        def counted(wrapped: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Cut
                left -= 1
                return wrapped(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            patched.setattr(restoring.os, "rename", counted(os.rename))
            patched.setattr(restoring.shutil, "copyfile", counted(shutil.copyfile))
            patched.setattr(restoring.shutil, "rmtree", counted(shutil.rmtree))
            patched.setattr(restoring, "write_durably", counted(restoring.write_durably))
            patched.setattr(restoring, "sync_directory", counted(restoring.sync_directory))
            patched.setattr(Path, "unlink", counted(Path.unlink))
            try:
                take_back(directory, feed(), source, name)
                cut = False
            except Cut:
                cut = True
        finish(directory.path)
        content = (path / "0.journal").read_bytes()
        was = resumption(directory.path, "plain").snapshot
        assert (content, was) in ((b"late", ""), (b"early", name))
        assert not list(path.parent.glob(".*.new"))
        assert not (path / "COMPLETE").exists()
        outcomes.append(content)
        if not cut:
            break
    assert outcomes[0] == b"late"
    assert outcomes[-1] == b"early"
    assert outcomes == sorted(outcomes, reverse=True)  # once it holds it holds
    assert len(outcomes) > 8


def test_what_a_step_relies_on_is_on_the_disk_before_it(directory, monkeypatch):
    """A power cut keeps or loses each name that was not synced, in any combination."""
    stored(directory, b"early")
    source, name = snapshot(directory)
    prepare(directory.path, feed(), source, name)
    steps: list[str] = []
    rename, unlink = os.rename, Path.unlink

    def renamed(old: Path, new: Path) -> None:
        steps.append(f"{old.name} -> {new.name}")
        rename(old, new)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        steps.append(f"{path.name} is removed")
        unlink(path, missing_ok)

    monkeypatch.setattr(restoring, "sync_directory", lambda path: steps.append(f"{path.name} sync"))
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(Path, "unlink", unlinked)
    restoring.take_back(directory.path, ["plain"])
    assert steps == [
        "feeds sync",
        "plain -> .plain.old",
        ".plain.new -> plain",
        "feeds sync",
        "COMPLETE is removed",
    ]


def test_another_pipeline_or_other_files_are_refused_and_nothing_is_done(directory):
    path = stored(directory, b"early")
    source, name = snapshot(directory)
    (path / "0.journal").write_bytes(b"late")
    other = (DataFile("/mnt/a.csv", 11, "8"), DataFile("/mnt/b.csv", 20, "9"))
    with pytest.raises(ConfigChanged, match=r"a\.csv is not of the feed any more"):
        take_back(directory, feed(other), source, name)
    with pytest.raises(ConfigChanged, match="batch_size was 4 and is 5"):
        take_back(directory, feed(batch_size=5), source, name)
    finish(directory.path)
    assert (path / "0.journal").read_bytes() == b"late"
    take_back(directory, feed(), source, name)
    assert (path / "0.journal").read_bytes() == b"early"


def test_the_beginning_has_no_stores(directory):
    path = stored(directory, b"late")
    source, name = snapshot(directory)
    take_back(directory, feed(), source, name)
    prepare(directory.path, feed(), None, BEGINNING)
    restoring.take_back(directory.path, ["plain"])
    assert resumption(directory.path, "plain") == Resumption(2, BEGINNING, name)
    names = sorted(p.name for p in path.iterdir())
    assert names == ["feed.json", "generation.json"]
    check_feed(directory.path, feed())
    prepare(directory.path, feed(), None, BEGINNING)
    restoring.take_back(directory.path, ["plain"])
    assert resumption(directory.path, "plain") == Resumption(3, BEGINNING, name)
