"""Samplers apply their cores' decisions to chunks; bad examples are in tests/unit/refusals."""

import numpy as np

from headrace_proto.schema import Field
from headrace_server.reading.chunk import BadRecords
from tests.unit.readers import of_columns, stages_of


def test_changes_that_are_remembered_are_bounded():
    run = stages_of(lambda s: s.stratified_sample("y", [0.5, 0.5]), {"y": Field("int64")})
    for k in range(1, 300):
        run.steps[0].set_target([1 / k, 1 - 1 / k], k)
    assert len(run.steps[0].stats()["changes"][0]) == 64
    assert len(str(run.state())) < 20_000


def test_a_group_without_any_weight_is_bad_as_a_whole_and_spoils_none_after_it():
    bad = BadRecords(skip=True)
    run = stages_of(lambda s: s.weighted_resample("w", 1.0, group=4), {"w": Field("float64")})
    for start, stop in ((0, 4), (4, 6)):  # a filter before it may make a group smaller
        assert not len(run.apply(of_columns(start, w=np.zeros(stop - start)), bad))
    assert bad.counts == {"zero_weights": 6}
    out = run.apply(of_columns(6, w=np.ones(4)), bad)
    assert out.facts["rate"].tolist() == [1.0] * len(out)
