"""Functions of scripts, notebooks and served files reach the workers, whatever they are made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_proto.errors import ServerError
from tests.patience import PATIENCE_S

from .processes import serve
from .serving import drained
from .test_cli import rows

#: It has no guard: the workers do not run it.  ``-c`` runs it as a notebook's cells are run.
SCRIPT = """
import functools
import multiprocessing
import headrace, headrace_server as hs

RATE = 4
calls = []

def helper(x):
    calls.append(x)
    return x / RATE

class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, example):
        return {"x": example["x"] * self.by}

    def shifted(self, example):
        return {"x": example["x"] + self.by}

def add(amount, example):
    return {"x": example["x"] + amount}

def shards(n, shard):
    yield from ({"x": float(i)} for i in range(shard, n, 2))

def closed_over(ten):
    return lambda example: {"x": helper(example["x"]) + ten}

def pipeline():
    return (
        hs.from_function(shards, 8, shards=2)
        .map(closed_over(10))
        .map(Scale(2))
        .map(Scale(100).shifted)
        .map(functools.partial(add, 0.5))
        .filter(lambda example: bool(example["x"] < 1000))
        .bucket(lambda columns: columns["x"].astype(int) % 2, 2, 2, allow_smaller_final_batch=True)
    )

def total():
    with hs.run(pipeline(), workers=2, partitions=2) as server:
        with headrace.connect(server.address, timeout=60) as feed:
            return sum(x for batch in feed for x in batch["x"].tolist())
"""
TOTAL = sum((i / 4 + 10) * 2 + 100.5 for i in range(8))


@pytest.mark.parametrize("as_file", [True, False], ids=["script", "session"])
def test_functions_of_a_program_simply_work(tmp_path, as_file):
    text = f"{SCRIPT}\nprint(total(), len(calls))\n"
    (tmp_path / "train.py").write_text(text)
    assert _ran(tmp_path, *(["train.py"] if as_file else ["-c", text])) == f"{TOTAL} 0"


def _ran(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_lambdas_of_a_served_file_use_the_module_that_workers_import(tmp_path):
    (tmp_path / "feeds.py").write_text(
        "import headrace_server as hs\n"
        "seen = []\n"
        "def noted(x):\n"
        "    seen.append(x)\n"
        "    return x\n"
        "def counted(example):\n"
        "    return {'x': len({*seen})}\n"
        "def feed():\n"
        "    examples = hs.from_examples([{'x': i} for i in range(4)])\n"
        "    return examples.map(lambda e: {'x': noted(e['x'])}).map(counted).batch(4)\n"
    )
    process, address = serve(tmp_path, "feeds.py:feed", warm=False)
    with process:
        assert rows(address, "feed") == [4] * 4


def _feed(fn: Any, batch_size: int = 2) -> hs.Pipeline:
    return hs.from_examples([{"x": float(i)} for i in range(8)]).map(fn).batch(batch_size)


def test_a_state_goes_on_with_a_changed_function_and_not_with_a_changed_argument(tmp_path):
    with hs.run(_feed(lambda example: {"x": example["x"]}), state_dir=tmp_path) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S, prefetch=0) as feed:
            assert next(feed)["x"].tolist() == [0, 1]
            assert next(feed)["x"].tolist() == [2, 3]

    def changed(fn: Any, **options: Any) -> list[float]:
        with hs.run(_feed(fn, **options), state_dir=tmp_path) as server:
            return [x for batch in drained(server) for x in batch["x"].tolist()]

    with pytest.raises(ServerError, match=r"pipeline\.shape\.batch_size was 2 and is 4"):
        changed(lambda example: {"x": example["x"]}, batch_size=4)
    with pytest.raises(
        ServerError, match=r"pipeline\.stages\[0\]\.options\.function was .* and is"
    ):
        changed("json:loads")
    assert changed(lambda example: {"x": -example["x"]}) == [-4, -5, -6, -7]
