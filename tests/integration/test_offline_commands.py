"""preview, check and convert, as a user meets them: in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.nursery import WarmPopen, environment, warm_run
from tests.patience import PATIENCE_S

FEEDS = """
import os
import headrace_server as hs

FEATURES = {"i": hs.scalar("int64"), "x": hs.sequence("float32"), "y": hs.scalar("int64")}
source = hs.read_jsonl("rows.jsonl", FEATURES)

def plain():
    return source.batch(4, dynamic_pad=True)

def ragged():
    return source.batch(4, ragged=True)

def classes():
    return source.select(["i", "y"]).stratified_sample("y", [0.5, 0.5], batch_size=4, seed=1)

def segments():
    features = {"k": hs.scalar("bytes"), "x": hs.sequence("float32")}
    return hs.read_jsonl("rows.jsonl", features).batch_sequences_with_states(
        input_key="k", input_sequences=["x"], input_context=[],
        initial_states={"h": hs.zeros((2,), "float32")}, num_unroll=2, batch_size=4)

def held(example):
    if example["i"] == 70 and "HOLD" in os.environ:
        open(os.environ["HOLD"]).read()  # a pipe that nobody writes to
    return example

def slow():
    return source.map(held, schema=FEATURES)

unshaped = source
broken = source.batch(4)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    rows = [{"i": i, "k": f"key {i}", "x": [1.5] * (i % 4 + 1), "y": i % 2} for i in range(100)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "feeds.py").write_text(FEEDS)
    return tmp_path


def command(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_run("-P", "-m", "headrace_server.cli", *words, cwd=here)


def test_preview_shows_the_first_batches(here: Path) -> None:
    done = command(here, "preview", "feeds.py:plain", "-n", "2")
    assert done.returncode == 0 and done.stderr == ""
    assert "plain: jsonl, 100 examples in 1 file\n" in done.stdout
    assert "batch 1: 4 rows" in done.stdout and "batch 2" not in done.stdout
    assert "x       float32  4x4    [1.5 0 0 0], [1.5 1.5 0 0], [1.5 1.5 1.…" in done.stdout


def test_preview_and_check_of_ragged_batches(here: Path) -> None:
    done = command(here, "preview", "feeds.py:ragged", "-n", "1")
    assert "x       float32  4x?    [1.5], [1.5 1.5], [1.5 1.5 1.5]" in done.stdout
    assert "ragged: ok" in command(here, "check", "feeds.py:ragged").stdout


def test_preview_shows_facts_and_states(here: Path) -> None:
    assert "@label" in command(here, "preview", "feeds.py:classes", "-n", "1").stdout
    shown = command(here, "preview", "feeds.py:segments", "-n", "1").stdout
    assert "key 0, key 1, key 2" in shown and "@length" in shown
    assert "sequences:x" in shown and "state:h" in shown


def test_check_names_problems_and_ends_with_1(here: Path) -> None:
    done = command(here, "check", "feeds.py:plain", "feeds.py:broken")
    assert done.returncode == 1
    assert "plain: ok" in done.stdout and "broken: not ok" in done.stdout
    assert "declare dynamic_pad=True" in done.stdout
    with open(here / "rows.jsonl", "a") as file:
        file.write('{"i": 100, "x": 1}\n')
    full = command(here, "check", "feeds.py:plain", "--full")
    assert full.returncode == 1 and "all 101 examples" in full.stdout
    assert "problem   " in full.stdout and "rows.jsonl, line 101" in full.stdout


def test_convert_writes_files_that_read_arrow_reads(here: Path) -> None:
    done = command(here, "convert", "feeds.py:unshaped", "out", "--rows-per-file", "40")
    assert done.returncode == 0, done.stderr
    assert "100 rows" in done.stdout and "in 3 files: " in done.stdout
    (here / "arrow.py").write_text(
        "import headrace_server as hs\n"
        "feed = hs.read_arrow('out/part-*.arrow').batch(4, dynamic_pad=True)\n"
    )
    assert command(here, "convert", "arrow.py:feed", "again").returncode == 0
    assert "all 100 examples" in command(here, "check", "arrow.py:feed", "--full").stdout
    first = command(here, "preview", "feeds.py:plain").stdout
    again = command(here, "preview", "arrow.py:feed").stdout
    rows = [[line for line in shown.split("\n") if "int64" in line] for shown in (first, again)]
    assert rows[0] == rows[1] != []


def test_a_conversion_that_was_killed_shows_no_file_and_begins_anew(here: Path) -> None:
    os.mkfifo(here / "hold")
    words = ["convert", "feeds.py:slow", "out", "--rows-per-file", "20"]
    process = WarmPopen(
        [sys.executable, "-P", "-m", "headrace_server.cli", *words],
        cwd=here,
        env=environment(HOLD="hold"),
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (here / "out" / "part-00002.arrow.part").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list((here / "out").glob("*.arrow"))
    assert "100 rows" in (shown := command(here, *words).stdout) and "in 5 files: " in shown
    assert len(list((here / "out").iterdir())) == 5
