"""The command ``headrace``, as a user meets it: in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from tests.children import children_of
from tests.nursery import warm_run
from tests.patience import PATIENCE_S, eventually

from .processes import Process, serve

FEEDS = """
import headrace_server as hs

def numbers():
    return hs.from_examples([{"x": i} for i in range(40)]).batch(4)

def doubled():
    return hs.from_examples([{"x": i} for i in range(40)]).map(double).batch(4)

def double(example):
    return {"x": example["x"] * 2}

def failing():
    return hs.from_examples([{"x": i} for i in range(40)]).map(fail).batch(4)

def fail(example):
    raise RuntimeError("this function of a user's fails")

def absent():
    return hs.read_jsonl("absent-*.jsonl").batch(4)

def unnamed():
    return hs.from_examples([{"x": 1}]).map("feeds:nobody").batch(1)

several = {"a": numbers(), "b": doubled()}
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a directory with a user's files."""
    (tmp_path / "feeds.py").write_text(FEEDS)
    return tmp_path


def headrace_command(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return warm_run("-m", "headrace_server.cli", *arguments, cwd=here)


def rows(address: str, feed: str | None = None) -> list[int]:
    with headrace.connect(address, feed=feed, timeout=PATIENCE_S) as batches:
        return [x for batch in batches for x in batch["x"].tolist()]


def test_a_dict_of_pipelines_gives_a_feed_for_each_of_its_names(here):
    process, address = serve(here, "feeds.py:several", "feeds.py:numbers")
    with process:
        assert rows(address, "a") == rows(address, "numbers") == list(range(40))
        assert rows(address, "b") == list(range(0, 80, 2))


def test_the_environment_and_the_command_line_together_make_a_server(here, monkeypatch):
    monkeypatch.setenv("HEADRACE_PIPELINES", "twice=feeds.py:doubled")
    monkeypatch.setenv("HEADRACE_PARTITIONS", "2")
    monkeypatch.setenv("HEADRACE_WORKERS", "2")
    monkeypatch.setenv("HEADRACE_STATE_DIR", "state")
    monkeypatch.setenv("HEADRACE_EXIT_WHEN_DONE", "yes")
    process, address = serve(here, "--workers", "1", warm=False)
    with process:
        assert len(children_of(process.pid)) == 2  # the locator, and one worker
        assert sorted(rows(address, "twice")) == list(range(0, 80, 2))
        assert process.finish() == 0
    kept = {path.name for path in (here / "state" / "feeds" / "twice").iterdir()}
    assert {"0.journal", "1.journal"} <= kept and "2.journal" not in kept


@contextmanager
def begun(here: Path, drain_timeout: str) -> Iterator[tuple[Process, headrace.Feed]]:
    """Start a server with a trainer that has a batch in hand."""
    process, address = serve(here, "feeds.py:numbers", "--drain-timeout", drain_timeout)
    with process:
        feed = headrace.connect(address, timeout=PATIENCE_S, prefetch=0)
        next(feed)
        yield process, feed
        with contextlib.suppress(headrace.ConnectionLost):
            feed.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_drains_too(here, number):
    """As by ``timeout``, ``kill -- -GROUP``, systemd, or the end of a terminal."""
    with begun(here, str(2 * PATIENCE_S)) as (process, feed):
        for child in children_of(process.pid):
            os.kill(child, number)
        process.signal(number)
        feed.close()  # commits
        assert process.finish() == 0
    said = process.output()
    assert "was killed" not in said
    assert said.index("the server drains") < said.index("no trainer holds a batch any more")


def test_the_drain_timeout_ends_the_wait_for_a_trainer_that_never_commits(here):
    with begun(here, "0.3") as (process, feed):
        process.signal(signal.SIGTERM)
        assert process.finish() == 0
        late = "ends while trainers hold batches: they were not within 0.3 s; batches"
        assert late in process.output()
        with pytest.raises(headrace.ConnectionLost, match="the server was stopped"):
            next(feed)


def test_a_second_signal_ends_at_once(here):
    with begun(here, "300") as (process, feed):
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)  # not SIGTERM again: two of one kind may become one
        assert process.finish() == 0  # and not after the 300 s of a drain
        with pytest.raises(headrace.ConnectionLost, match="the server was stopped"):
            next(feed)


def test_a_feed_that_failed_tells_its_trainers_and_makes_the_exit_code_1(here):
    process, address = serve(here, "feeds.py:failing", "feeds.py:numbers")
    with process:
        with pytest.raises(headrace.DataError, match="this function of a user's fails"):
            rows(address, "failing")
        assert len(rows(address, "numbers")) == 40  # it does not stop the others
        process.signal(signal.SIGTERM)
        assert process.finish() == 1


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ("absent", "absent-*.jsonl' matches no file"),
        ("unnamed", "feeds:nobody: there is no 'nobody' in feeds"),
    ],
)
def test_what_a_worker_can_not_open_is_one_readable_paragraph_and_exit_code_1(here, feed, words):
    done = headrace_command(here, "serve", f"feeds.py:{feed}")
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and "Error:" not in done.stderr


def test_sigterm_during_the_start_gives_it_up_and_leaves_nothing(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "import headrace_server as hs\n"
        "def slow():\n"
        "    time.sleep(60)\n"
        "    yield {'i': 1}\n"
        "def feed():\n"
        "    return hs.from_function(slow).batch(1)\n"
    )
    command = ["-m", "headrace_server.cli", "serve", "slow.py:feed", "--bind", "tcp://127.0.0.1:*"]
    with Process(*command, cwd=tmp_path, warm=False) as process:
        # locator and worker: the source is being opened
        eventually(lambda: len(children_of(process.pid)) == 2)
        process.signal(signal.SIGTERM)
        assert process.finish() == 0
