"""The input of a partition: sizes of reads, groups, and counts."""

from __future__ import annotations

from typing import Any

import numpy as np

import headrace_server as hs
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
