"""A conversion that is killed; what the commands print is in tests/unit/cli."""

import os

from tests.nursery import warm_run
from tests.patience import eventually

from .processes import Process

FEEDS = """
import os
import headrace_server as hs

FEATURES = {"i": hs.scalar("int64")}

def held(example):
    if example["i"] == 70 and "HOLD" in os.environ:
        open(os.environ["HOLD"]).read()  # a pipe that nobody writes to
    return example

slow = hs.read_jsonl("rows.jsonl", FEATURES).map(held, schema=FEATURES)
"""
WORDS = ["-P", "-m", "headrace_server.cli", "convert", "feeds.py:slow", "out"]
WORDS += ["--rows-per-file", "20"]


def test_a_conversion_that_was_killed_shows_no_file_and_begins_anew(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"i": {i}}}\n' for i in range(100)))
    (tmp_path / "feeds.py").write_text(FEEDS)
    os.mkfifo(tmp_path / "hold")
    with Process(*WORDS, cwd=tmp_path, HOLD="hold") as process:
        eventually((tmp_path / "out" / "part-00002.arrow.part").exists)
        process.kill()
    assert not list((tmp_path / "out").glob("*.arrow"))
    assert "100 rows" in (shown := warm_run(*WORDS, cwd=tmp_path).stdout)
    assert "in 5 files: " in shown and len(list((tmp_path / "out").iterdir())) == 5
