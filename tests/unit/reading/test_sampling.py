"""Samplers apply their cores' decisions to chunks of any size, and can be resumed."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Stage
from headrace_server.reading.chunk import BadRecords, Chunk
from headrace_server.reading.stages import RowStages
from tests.unit.readers import of_columns


def stages(declare, **columns):
    """``declare``: a stage, or a function that adds stages to a pipeline."""
    fields = {name: Field(np.asarray(values).dtype.name) for name, values in columns.items()}
    if isinstance(declare, Stage):
        return RowStages((declare,), fields)
    declared = declare(hs.read_npz("a.npz")).batch(4).declaration()
    return RowStages(declared.stages, fields)


def applied(declare, *, bad=None, epoch=0, cut=None, **columns):
    """The rows that come out, all in one chunk or cut at every ``cut``."""
    run = stages(declare, **columns)
    n = len(next(iter(columns.values())))
    parts = []
    for start in range(0, n, cut or n):
        cutout = {name: values[start : start + (cut or n)] for name, values in columns.items()}
        out = run.apply(of_columns(start, **cutout), bad or BadRecords(), epoch)
        if len(out):
            parts.append(out)
    return (Chunk.join(parts) if parts else None), run


def ordinals(chunk):
    return [] if chunk is None else chunk.ordinals.tolist()


# keep, rejection_sample


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_no_probability_is_a_bad_example(value):
    p = np.array([0.5, value, 1.0])
    with pytest.raises(
        DataError, match=r"record 1: rejection_sample: accept_prob .*must be between 0 and 1"
    ):
        applied(lambda s: s.rejection_sample("p"), p=p)
    bad = BadRecords(skip=True)
    out, _ = applied(lambda s: s.rejection_sample("p"), bad=bad, p=p)
    assert bad.counts == {"out_of_range": 1} and 1 not in ordinals(out)


# stratified_sample


@pytest.mark.parametrize(
    ("dtype", "value"), [("int64", 3), ("int64", -1), ("uint64", 2**64 - 1), ("float64", 0.5)]
)
def test_a_label_out_of_range_is_a_bad_example(dtype, value):
    y = np.array([0, value, 2], dtype)
    with pytest.raises(
        DataError,
        match=rf"a.npz, record 1: stratified_sample: labels \(column 'y'\) is {value}; it must be "
        r"an integer between 0 and 2",
    ):
        applied(lambda s: s.stratified_sample("y", [0.2, 0.3, 0.5]), y=y)
    bad = BadRecords(skip=True)
    same = [0.2, 0.3, 0.5]
    out, run = applied(lambda s: s.stratified_sample("y", same, init_probs=same), bad=bad, y=y)
    assert ordinals(out) == [0, 2] and bad.counts == {"label_out_of_range": 1}
    assert run.steps[0].stats()["accepted"] == [1, 0, 1]


def test_changes_that_are_remembered_are_bounded():
    run = stages(lambda s: s.stratified_sample("y", [0.5, 0.5]), y=[0])
    for k in range(1, 300):
        run.steps[0].set_target([1 / k, 1 - 1 / k], k)
    assert len(run.steps[0].stats()["changes"][0]) == 64
    assert len(str(run.state())) < 20_000


# Copies


NONE = (-1.0, float("nan"), float("inf"), -float("inf"))


@pytest.mark.parametrize(
    ("declare", "rule", "values"),
    [
        (
            lambda s: s.resample_at_rate("r"),
            "rates .*, 0 or more, and at most 2..52",
            (*NONE, 1e16),
        ),
        (lambda s: s.weighted_resample("r", 1), "weights .*a weight is finite and 0 or more", NONE),
    ],
)
def test_a_rate_or_weight_that_is_none_is_a_bad_example(declare, rule, values):
    for value in values:
        r = np.array([1.0, value])
        with pytest.raises(DataError, match=rf"record 1: \w+: {rule}"):
            applied(declare, r=r)
        bad = BadRecords(skip=True)
        out, _ = applied(declare, bad=bad, r=r)
        assert bad.counts == {"out_of_range": 1} and set(ordinals(out)) <= {0}


def test_more_copies_than_memory_holds_are_refused_with_the_row():
    with pytest.raises(DataError, match=r"a.npz, record 3: .*at most 16777216 can be at once"):
        applied(lambda s: s.resample_at_rate("r"), r=np.array([1, 1, 1, 1e6] + 20 * [9e5]))


# weighted_resample


def test_a_group_without_any_weight_is_bad_as_a_whole_and_spoils_none_after_it():
    w = np.r_[np.zeros(6), np.ones(400)]

    def declare(s):
        return s.weighted_resample("w", 1.0, group=4)

    with pytest.raises(
        DataError,
        match=r"a.npz, record 0 and those after it: weighted_resample: weights \(column 'w'\): the "
        "mean of the weights",
    ):
        applied(declare, w=w, cut=4)
    bad = BadRecords(skip=True)
    run = stages(declare, w=w)
    for start, stop in ((0, 4), (4, 6)):  # a filter before it may make a group smaller
        assert not len(run.apply(of_columns(start, w=w[start:stop]), bad))
    assert bad.counts == {"zero_weights": 6}
    out = run.apply(of_columns(6, w=w[6:10]), bad)
    assert out.facts["rate"].tolist() == [1.0] * len(out)
