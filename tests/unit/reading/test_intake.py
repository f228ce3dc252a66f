"""The input of a partition: sizes of reads, groups, and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.intake import Intake
from headrace_server.shaping.plan import Read
from tests.unit.readers import opened_source


def intake_of(pipeline: Pipeline) -> Intake:
    declaration = pipeline.batch(4).declaration()
    bad = BadRecords(declaration.policy.on_bad_example == "skip")
    return Intake(opened_source(declaration.source, bad), declaration, 0, 1, bad)


def numbered(n: int) -> Pipeline:
    return hs.from_examples([{"i": i, "y": i % 2, "w": 1.0 + i % 2} for i in range(n)])


def test_a_group_of_the_source_is_read_whole_though_bad_records_lie_in_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join("{oops\n" if i % 9 == 4 else f'{{"w": {i}}}\n' for i in range(100)))
    pipeline = hs.read_jsonl(str(path), {"w": hs.scalar("float64")})
    intake = intake_of(
        pipeline.options(on_bad_example="skip").weighted_resample("w", 1.0, group=30)
    )
    assert intake.limit(None) == intake.limit(7) == 30
    assert intake.stages.fact_fields == {"rate": Field("float32")}
    sound = [i for i in range(100) if i % 9 != 4]
    position: Any = intake.start
    means, groups = [], 0
    while position is not None:
        intake.begin()
        chunk, position = intake.chunk(Read(0, 0, position, 30))
        intake.end()
        group = sound[30 * groups : 30 * groups + 30]
        groups += 1
        means.append(np.mean(group))
        weights = chunk.columns["w"]
        assert isinstance(weights, np.ndarray) and set(weights.tolist()) <= set(group)
        assert np.allclose(chunk.facts["rate"], weights / np.mean(means), rtol=1e-5)
    assert groups == 3 and intake.dropped["bad:corrupt_record"] == 11


def test_bad_examples_are_counted_by_reason_and_bounded_over_all_reasons():
    intake = intake_of(numbered(9).options(on_bad_example="skip", max_bad_examples=5))
    intake.bad.report(DataError("x"), "wrong", 3)
    intake.bad.report(DataError("y"), "odd", 2)
    intake.end()
    assert intake.dropped == {"bad:wrong": 3, "bad:odd": 2} and intake.bad.counts == {}
    intake.bad.report(DataError("z"), "odd")
    with pytest.raises(DataError, match="s=5 bad examples: 3 odd, 3 wrong, over all epochs"):
        intake.end()


def test_a_source_with_a_column_that_no_batch_can_hold_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text(",x\n1,2\n")
    source = hs.read_csv(str(tmp_path / "a.csv"))
    with pytest.raises(DataError, match=r"the source has a column named ''"):
        intake_of(source)
    assert list(intake_of(source.rejection_sample(0.9).select(["x"])).fields or {}) == ["x"]
