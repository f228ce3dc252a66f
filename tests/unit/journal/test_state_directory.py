"""A state directory has one owner and counts its starts; test_changed_feeds has other feeds."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import ServerError
from headrace_server.files.durable_file import write_durably
from headrace_server.files.manifest import DataFile
from headrace_server.journal import feed_directory
from headrace_server.journal.feed_directory import (
    check_feed,
    own_partition,
    partition_path,
)
from headrace_server.journal.journal import Journal
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.process.config import FeedConfig
from tests.nursery import WarmPopen, environment

FILES = (DataFile("/data/a", 10, "1"), DataFile("/data/b", 20, "2"))
ROWS = hs.read_tfrecord("a-*.tfrecord", {"x": hs.scalar("int64")}).batch(2).declaration()
FEED = FeedConfig("speech", ROWS, FILES, 3)


@pytest.fixture
def directory(tmp_path: Path) -> Any:
    one = StateDirectory(tmp_path / "deep" / "state")
    yield one
    one.close()


def child(code: str, path: Path) -> subprocess.Popen[str]:
    return WarmPopen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@pytest.mark.parametrize(
    "place",
    ["feeds/speech", "feeds/speech/0.journal", "feeds/speech/0.lock", "snapshots/speech", "index"],
)
def test_a_link_in_the_directory_is_refused_and_nothing_is_written_where_it_leads(place, tmp_path):
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "state" / place
    elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / "file" if link.suffix else elsewhere)
    with pytest.raises(ServerError, match=f"{place} is a symbolic link to .*elsewhere"):
        StateDirectory(tmp_path / "state")
    link.unlink()
    (tmp_path / "linked").symlink_to(tmp_path / "state")  # the directory itself may be one
    opened = StateDirectory(tmp_path / "linked")
    check_feed(opened.path, FEED)
    opened.close()
    assert not list(elsewhere.iterdir())


def test_a_link_that_came_later_is_not_followed(directory, tmp_path):
    check_feed(directory.path, FEED)
    path = partition_path(directory.path, "speech", 0)
    (tmp_path / "elsewhere").mkdir()
    for link in (path, path.with_suffix(".lock"), path.with_name("feed.json.part")):
        link.symlink_to(tmp_path / "elsewhere" / "file")
    for write in (
        lambda: own_partition(path),
        lambda: Journal(path, "power", begun=True),
        lambda: write_durably(path.with_name("feed.json"), "x"),
    ):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            write()
    path.parent.rename(directory.path / "feeds" / "other")
    path.parent.symlink_to(tmp_path / "elsewhere")
    for write in (lambda: own_partition(path), lambda: Journal(path, "power")):
        with pytest.raises(OSError, match="Not a directory"):
            write()
    assert not list((tmp_path / "elsewhere").iterdir())


# The term


def test_a_number_follows_the_clock_where_that_is_further_and_can_be_right(tmp_path):
    directory = StateDirectory(tmp_path)
    numbers = [directory.raise_term(0, now) for now in (50, 50, 7, 0, 2**31 - 2, 60)]
    assert numbers == [50, 51, 52, 53, 54, 60]
    assert directory.raise_term(70, 65) == 71
    assert directory.starts == (*numbers, 71)
    assert directory.count == 7
    directory.close()


KILLED = """
import os, sys
from headrace_server.journal.state_directory import StateDirectory
FILES = ("state_directory.py", "durable_file.py")
at, seen = int(sys.stdin.readline()), 0
def trace(frame, event, argument):
    global seen
    if event in ("call", "line") and frame.f_code.co_filename.endswith(FILES):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), 9)
    return trace
held = StateDirectory(sys.argv[1])
sys.settrace(trace)
term = held.raise_term()
sys.settrace(None)
print(term, flush=True)
"""


def test_a_kill_at_any_line_never_gives_a_number_twice(tmp_path):
    given, killed = [0], 0
    for at in range(1, 80, 2):
        process = child(KILLED, tmp_path)
        out, error = process.communicate(f"{at}\n")
        assert error == ""
        if out:
            given.append(int(out))
            assert given[-1] > given[-2]
            break
        killed += 1
    assert killed > 8
    assert len(given) == 2
    directory = StateDirectory(tmp_path)
    assert directory.raise_term() > given[-1]
    directory.close()


def test_a_note_of_another_release_is_refused_with_both_versions(directory, monkeypatch):
    check_feed(directory.path, FEED)
    monkeypatch.setattr(feed_directory, "_FORMAT", 6)
    with pytest.raises(
        ServerError, match=r"another release .*format 5, this one reads 6\): go on with that"
    ) as refused:
        check_feed(directory.path, FEED)
    subprocess.run(shlex.split(str(refused.value).partition("to begin anew: ")[2]), check=True)
    anew = StateDirectory(directory.path)
    assert not check_feed(anew.path, FEED)
    anew.close()
    assert Path(f"{directory.path}.1/feeds/speech/feed.json").exists()


def test_terms_of_a_share_are_no_other_shares(directory):
    terms = [directory.raise_term(share=(2, 4)) for _ in range(3)]
    assert terms == [2, 6, 10]
    assert directory.raise_term(at_least=21, share=(2, 4)) == 22
    assert directory.raise_term(beyond=30, share=(2, 4)) == 34
