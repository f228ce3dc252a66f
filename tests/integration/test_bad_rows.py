"""Rows that a stage or a shape refuses: they stop the feed by name, or are left out and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

from .serving import drained, serving

_HALF = [0.5, 0.5]
_NAN, _INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("bad", "declare", "fault", "reason"),
    [
        ([-1, 7, 2**40], lambda s: s.bucket("v", 4, 2), "which_bucket .*is -1; ", "bucket"),
        ([7, -1], lambda s: s.stratified_sample("v", _HALF, 4, _HALF), "labels .*is 7", "label"),
        ([7, -1], lambda s: s.stratified_sample_unknown_dist("v", _HALF, 4), "is 7", "label"),
        ([_NAN, -1.0, _INF], lambda s: s.resample_at_rate("v").batch(4), "is nan;", ""),
        ([_INF, -1.0], lambda s: s.weighted_resample("v", 1).batch(4), "is inf;", ""),
    ],
    ids=["bucket", "known classes", "unknown classes", "rates", "weights"],
)
def test_a_value_out_of_range_stops_the_feed_by_name_or_is_left_out(
    bad: list[float],
    declare: Callable[[hs.Pipeline], hs.Pipeline],
    fault: str,
    reason: str,
    tmp_path: Path,
) -> None:
    values: Any = np.arange(60) % 2 if reason else np.ones(60)
    values[30 : 30 + len(bad)] = bad
    np.savez(tmp_path / "a.npz", i=np.arange(60), v=values)
    stops = declare(hs.read_npz(str(tmp_path / "a.npz")))
    feeds = {
        f"skips_{most}": stops.options(on_bad_example="skip", max_bad_examples=most)
        for most in (len(bad) - 1, len(bad))
    }
    enough, too_few = f"skips_{len(bad)}", f"skips_{len(bad) - 1}"
    with serving({"stops": stops, **feeds}) as server:
        with pytest.raises(headrace.DataError, match=f"a.npz, record 30: .*{fault}"):
            drained(server, "stops")
        with pytest.raises(headrace.DataError, match=f"more than max_bad_examples={len(bad) - 1}"):
            drained(server, too_few)
        rows = [i for batch in drained(server, enough) for i in batch["i"].tolist()]
        dropped = server.stats()[enough]["dropped"]
    assert rows and not set(rows) & set(range(30, 30 + len(bad)))
    assert dropped[f"bad:{reason}_out_of_range" if reason else "bad:out_of_range"] == len(bad)


def test_rows_of_unequal_shapes_are_named() -> None:
    rows = [{"i": i, "x": np.zeros(3 + (i == 3))} for i in range(4)]
    with (
        serving(hs.from_examples(rows).bucket_by_sequence_length("x", 2, [10])) as server,
        pytest.raises(
            headrace.DataError,
            match=r"\[3\] \(examples, record 2\) and \[4\] \(examples, record 3\)",
        ),
    ):
        drained(server)
