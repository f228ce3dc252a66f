"""A trainer that has announced that it commits batches measures a feed."""

from __future__ import annotations

import json

import pytest

import headrace
import headrace_server as hs
from headrace.bench import main, measure
from tests.integration.serving import in_segments
from tests.patience import PATIENCE_S


def numbers(batches: int) -> hs.Pipeline:
    return hs.from_examples([{"x": i} for i in range(4 * batches)]).batch(4)


def test_figures_agree_with_one_another(capsys):
    """One feed to its end, which shows that it was all counted; of another the first moment."""
    with hs.run({"short": numbers(150), "long": numbers(4000)}) as server:
        consume = {"address": server.address, "consume": True}
        assert main({**consume, "feed": "short", "seconds": 600, "json": True}) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["feed"], found["through"]) == ("short", "shared memory")
        assert found["batches"] == 150 - 8
        assert found["batches_per_s"] == pytest.approx(found["batches"] / found["seconds"])
        assert found["rows_per_s"] == pytest.approx(4 * found["batches_per_s"])
        assert found["mb_per_s"] > 4 * 8 * found["batches_per_s"] / 1e6 * 0.99
        assert 0 < found["waited"] <= 1.01
        assert 0 < found["wait_us_p50"] <= found["wait_us_p99"]
        assert main({**consume, "feed": "long", "seconds": 0.01}) == 0
        assert "long: " in (told := capsys.readouterr().out) and "batches/s" in told


def test_segments_are_saved_so_that_the_feed_goes_on():
    examples = [{"key": str(i), "x": [0.0] * 6} for i in range(200)]
    pipeline = in_segments(hs.from_examples(examples), batch_size=4)
    with hs.run(pipeline) as server, headrace.connect(server.address, timeout=PATIENCE_S) as feed:
        found = measure(feed, 60.0)  # to the end
    assert found["batches"] == 150 - 8


def test_the_bench_reports_what_it_can_not_measure(capsys):
    nowhere = {"address": "tcp://127.0.0.1:1", "consume": True}
    assert main({"address": "tcp://127.0.0.1:1"}) == 2
    assert "--consume" in capsys.readouterr().err
    assert main({**nowhere, "seconds": 0}) == 2
    assert "--seconds 0" in capsys.readouterr().err
    assert main({**nowhere, "prefetch": "much"}) == 2
    assert "prefetch='much' is neither an integer nor 'auto'" in capsys.readouterr().err
    assert main({**nowhere, "timeout": 0.2}) == 1
    assert "no server answered" in capsys.readouterr().err
    with hs.run(hs.from_examples([{"x": 1}]).batch(1)) as server:
        consume = {"address": server.address, "consume": True}
        assert main({**consume, "feed": "absent"}) == 2
        assert "no feed 'absent'" in capsys.readouterr().err
        assert main(consume) == 1
    assert "too few to measure" in capsys.readouterr().err
