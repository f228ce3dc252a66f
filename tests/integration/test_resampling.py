"""Resampling through whole servers: counts and rates of the rule, for all chunks and workers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.resampling_rule import rates_by_rule

from .serving import drained, serving

Rows = list[tuple[int, float]]


def weights_of(n: int) -> np.ndarray:
    return np.random.default_rng(5).exponential(size=n)


def written(tmp_path: Path, kind: str, cuts: list[int]) -> hs.Pipeline:
    """Numbers and weights in files that end at the cuts."""
    weights = weights_of(cuts[-1])
    folder = tmp_path / f"{kind}-{len(cuts)}"
    folder.mkdir()
    for part, (start, stop) in enumerate(zip([0, *cuts], cuts, strict=False)):
        i, w = np.arange(start, stop), weights[start:stop]
        if kind == "npz":
            np.savez(folder / f"{part:03}.npz", i=i, w=w)
        else:
            lines = [
                json.dumps({"i": int(k), "w": float(x)}) + "\n" for k, x in zip(i, w, strict=True)
            ]
            (folder / f"{part:03}.jsonl").write_text("".join(lines))
    read = hs.read_npz if kind == "npz" else hs.read_jsonl
    return read(str(folder / f"*.{kind}"))


def rows_of_each(pipelines: dict[str, hs.Pipeline], rates: bool = True) -> dict[str, Rows]:
    """(number, rate) of every row of each feed of one server, in the order in which they came."""
    rows: dict[str, Rows] = {name: [] for name in pipelines}
    with serving(pipelines) as server:
        for name in pipelines:
            for batch in drained(server, name):
                told = batch.rate.tolist() if rates else [0.0] * batch.rows
                rows[name] += zip(batch["i"].tolist(), told, strict=True)
    return rows


def rows_of(pipeline: hs.Pipeline, rates: bool = True) -> Rows:
    return rows_of_each({"only": pipeline}, rates)["only"]


def test_copies_are_poisson_and_stand_side_by_side() -> None:
    n = 5000
    source = hs.from_examples([{"i": k} for k in range(n)])
    rates = {str(rate): rate for rate in (0.3, 3.0, 40.0)}
    feeds = {
        name: source.resample_at_rate(rate, seed=1).batch(64, True) for name, rate in rates.items()
    }
    for name, rows in rows_of_each(feeds, rates=False).items():
        rate, numbers = rates[name], [i for i, _ in rows]
        assert numbers == sorted(numbers)
        counts = np.bincount(numbers, minlength=n)
        assert abs(counts.mean() - rate) < 4 * np.sqrt(rate / n)
        assert abs(counts.var() - rate) < 4 * rate * np.sqrt((2 + 1 / rate) / n)


@pytest.mark.parametrize("stage", ["resample_at_rate", "weighted_resample"])
def test_a_rate_or_weight_that_is_none_names_its_record(stage: str) -> None:
    values = {"nan": float("nan"), "negative": -1.0, "inf": float("inf")}
    stopping, skipping = {}, {}
    for name, value in values.items():
        rows = [{"i": k, "r": value if k == 30 else 1.0} for k in range(60)]
        source = hs.from_examples(rows)
        resampled = (
            source.resample_at_rate("r") if stage[0] == "r" else source.weighted_resample("r", 1)
        )
        stopping[name] = resampled.batch(10, True)
        skipping[f"{name}_skipped"] = stopping[name].options(
            on_bad_example="skip", max_bad_examples=1
        )
    with serving({**stopping, **skipping}) as server:
        for name, value in values.items():
            fault = rf"examples, record 30: {stage}: .*is {value};"
            with pytest.raises(headrace.DataError, match=fault):
                drained(server, name)
        for name in skipping:
            batches = drained(server, name)
            assert 30 not in [i for batch in batches for i in batch["i"].tolist()], name
            assert server.stats()[name]["dropped"]["bad:out_of_range"] == 1, name


@pytest.mark.parametrize("warmup", [10, None])
def test_rates_are_those_of_the_rule_and_weigh_the_loss_back(
    tmp_path: Path, warmup: int | None
) -> None:
    n = 4000
    source = written(tmp_path, "npz", [n])
    pipeline = source.weighted_resample("w", 1.5, 0.9, warmup).batch(16, True)
    rows = rows_of(pipeline)
    want = rates_by_rule(weights_of(n).tolist(), 16, 1.5, 0.9, warmup)
    assert np.allclose([rate for _, rate in rows], [want[i] for i, _ in rows], rtol=1e-5)
    assert abs(len(rows) / n - 1.5) < 0.1
    numbers = [i for i, _ in rows]
    assert numbers == sorted(numbers)
    # Rows weighted by 1 / rate stand for the source: the mean of anything is the source's.
    total = sum(1 / rate for _, rate in rows)
    assert abs(sum(i / rate for i, rate in rows) / total - n / 2) < 150


def test_weights_that_are_all_0_are_a_bad_group_not_a_hang() -> None:
    rows = [{"i": k, "w": float(k >= 20)} for k in range(60)]
    pipeline = hs.from_examples(rows).weighted_resample("w", 1.0).batch(10, True)
    with serving({"stops": pipeline, "skips": pipeline.options(on_bad_example="skip")}) as server:
        with pytest.raises(headrace.DataError, match=r"record 0 and those after it: .*the mean"):
            drained(server, "stops")
        told = [rate for batch in drained(server, "skips") for rate in batch.rate.tolist()]
        assert server.stats()["skips"]["dropped"]["bad:zero_weights"] == 20
    assert set(told) == {1.0}
