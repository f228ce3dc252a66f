"""The findings of a short and of a full survey of a pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.cli import check as module
from headrace_server.cli.check import Survey

EXAMPLES = [{"k": f"{i}", "x": np.ones(i % 5 + 1), "y": i % 3} for i in range(90)]


def looked(pipeline: hs.Pipeline, partitions: int = 1, full: bool = False) -> Survey:
    return Survey("feed", pipeline.declaration(), partitions).look(full)


def no_twos(example: dict[str, Any]) -> dict[str, Any]:
    if example["y"] == 2:
        raise RuntimeError("no twos")
    return example


def nothing(example: dict[str, Any]) -> bool:
    return False


def lines(path: Path, n: int) -> hs.Pipeline:
    path.write_text("".join(json.dumps({"i": i}) + "\n" for i in range(n)))
    return hs.read_jsonl(str(path), {"i": hs.scalar("int64")})


def test_a_pipeline_that_works_is_described(tmp_path: Path):
    found = looked(lines(tmp_path / "a.jsonl", 100).shuffle(seed=1).batch(8))
    assert found.problems == found.notes == []
    nbytes = (tmp_path / "a.jsonl").stat().st_size
    assert found.facts == {
        "source": f"jsonl, 1 file, {nbytes} bytes",
        "examples": "100",
        "reading": "by number, from anywhere",
        "shuffle": "exact",
        "batches": "8 rows, 64 bytes, by the first",
    }


def test_a_source_that_is_read_forward_says_how_far_that_goes(tmp_path: Path):
    for i in range(2):
        (tmp_path / f"{i}.csv").write_text("i\n1\n2\n3\n")
    pipeline = hs.read_csv(f"{tmp_path}/*.csv").shuffle(seed=1, window=4).batch(2)
    found = looked(pipeline, partitions=3)
    assert not found.problems and found.facts["reading"] == "forward only"
    assert "not known" in found.facts["examples"]
    assert found.facts["shuffle"] == "within windows of 4"
    assert "3 partitions of 2 streams" in found.notes[0]
    assert looked(pipeline, full=True).facts["checked"] == "all 6 examples"


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        (hs.read_jsonl("/nowhere/*.jsonl").batch(1), "'/nowhere/*.jsonl' matches no file"),
        (hs.from_examples(EXAMPLES).batch(4), "declare dynamic_pad=True"),
        (hs.from_examples(EXAMPLES).map("absent:f").batch(4), "there is no module 'absent'"),
        (hs.from_examples(EXAMPLES).map(no_twos).batch(4, dynamic_pad=True), "no twos"),
        (
            hs.from_examples(EXAMPLES).select(["y"]).batch(91),
            "fill no batch; give a smaller batch_size or fewer partitions, or allow_smaller_final_",
        ),
        (hs.from_examples(EXAMPLES).filter(nothing).batch(9, True), "makes no batch: 90 as filter"),
    ],
    ids=["files", "shapes", "import", "function", "size", "none"],
)
def test_what_would_stop_the_feed_is_a_problem(pipeline: hs.Pipeline, words: str):
    found = looked(pipeline)
    assert words in found.problems[0]


def test_an_order_that_the_source_can_not_be_read_in_is_a_problem(tmp_path: Path):
    (tmp_path / "a.csv").write_text("i\n1\n")
    found = looked(hs.read_csv(str(tmp_path / "a.csv")).shuffle(seed=1).batch(1))
    assert (
        "can not be read by number" in found.problems[0]
        and found.facts["shuffle"] == "not possible"
    )


def test_all_examples_are_gone_through_only_when_asked(tmp_path: Path):
    pipeline = lines(tmp_path / "a.jsonl", 500)
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"i": "x"}\n{"i": 501}\n')
    assert not looked(pipeline.batch(4)).problems
    found = looked(pipeline.batch(4), full=True)
    assert found.facts["checked"] == "all 502 examples"
    assert "1 bad example (1 wrong_type)" in found.problems[0]
    assert "a.jsonl, line 501" in found.problems[1]
    lenient = pipeline.options(on_bad_example="skip")
    assert not looked(lenient.batch(4), full=True).problems
    none = pipeline.options(on_bad_example="skip", max_bad_examples=0)
    assert (
        "1 bad example (1 wrong_type), more than max_bad_examples=0"
        in looked(none.batch(4), full=True).problems[0]
    )


def test_what_the_shape_refuses_is_found_too():
    source = hs.from_examples(EXAMPLES).select(["y"])
    found = looked(source.bucket("y", 4, num_buckets=2), full=True)
    assert found.problems[0].startswith("30 bad examples (30 bucket_out_of_range)")
    twice = hs.from_examples([{"k": "same", "x": np.ones(3)} for _ in range(3)])
    segments = twice.batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states={"h": hs.zeros((), "float32")},
        num_unroll=2,
        batch_size=1,
        pad=True,
    )
    assert "keys are unique" in looked(segments, full=True).problems[0]


def test_large_record_files_are_judged_by_the_smallest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_QUICK_BYTES", 100)
    for i, n in enumerate((400, 100, 300)):
        lines(tmp_path / f"{i}.jsonl", n)
    pipeline = hs.read_jsonl(f"{tmp_path}/*.jsonl", {"i": hs.scalar("int64")}).batch(4)
    found = looked(pipeline)
    assert not found.problems and "not known" in found.facts["examples"]
    assert "3 files" in found.facts["source"]
    assert looked(pipeline, full=True).facts["examples"] == "800"
