"""Segments with states through whole servers: the original's stream, every value, every ending."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from tests.patience import PATIENCE_S

from .segment_streams import (
    UNROLL,
    Ledger,
    cells_of,
    chained,
    connect,
    full,
    of_counts,
    plain,
    save_all,
    to_the_end,
)
from .serving import serving

# The stream


@pytest.mark.parametrize(
    ("framework", "way"),
    [
        ("numpy", "tcp"),
        ("tf", "shared memory"),
        ("torch", "tcp"),
        ("jax", "shared memory"),
    ],
    indirect=["way"],
)
def test_every_attribute_is_right_in_every_framework(framework, way):
    if framework != "numpy":
        pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    examples = of_counts([3, 1, 2, 5, 2])
    ledger = Ledger(examples)
    with serving(full(examples)) as server, connect(server, framework=framework) as feed:
        assert feed.local == (way == "shared memory")
        assert sorted(feed.states) == ["chain", "flags", "mark", "sums"]
        for batch in feed:
            states = ledger.check(batch)
            check_attributes(batch, ledger, exact_index=framework != "jax")
            if framework == "torch":
                torch = pytest.importorskip("torch")
                states["sums"] = torch.from_numpy(states["sums"])
            elif framework == "tf":
                tf = pytest.importorskip("tensorflow")
                states = {name: tf.constant(value) for name, value in states.items()}
            save_all(batch, states)
    ledger.assert_complete()


def check_attributes(batch: Any, ledger: Ledger, exact_index: bool) -> None:
    cells = cells_of(batch)
    owners = [ledger.of[key] for key, _ in cells]
    counts = [known.count for known in owners]
    rows = [(key, i, n) for (key, i), n in zip(cells, counts, strict=True)]
    assert batch.batch_size == len(rows) == batch.rows
    assert plain(batch.key).tolist() == [b"%05d_of_%05d:%s" % (i, n, key) for key, i, n in rows]
    assert plain(batch.next_key).tolist() == [
        b"STOP:" + key if i + 1 == n else b"%05d_of_%05d:%s" % (i + 1, n, key) for key, i, n in rows
    ]
    assert plain(batch.first).tolist() == [i == 0 for _, i, _ in rows]
    assert plain(batch.last).tolist() == [i + 1 == n for _, i, n in rows]
    assert plain(batch.total_length).tolist() == [known.steps for known in owners]
    assert plain(batch.length).tolist() == [
        min(UNROLL, known.steps - i * UNROLL) for known, (_, i) in zip(owners, cells, strict=True)
    ]
    assert plain(batch.context["who"]).tolist() == [k.told["who"].encode() for k in owners]
    assert set(batch.sequences) == {"steps", "words", "on"}
    if exact_index:
        labels = [int(known.told["label"]) for known in owners]
        assert plain(batch.insertion_index).tolist() == [-(2**63) + label for label in labels]
        assert sorted(labels) == labels  # the oldest first


# Cancel


def test_cancel_hands_out_what_is_ready_refuses_every_save_and_counts_the_rest():
    """Six examples of three segments, all read.  One batch is out when the feed is cancelled: the
    other four first segments are handed out, all three saves are refused, 12 segments never are."""
    examples = of_counts([3] * 6)
    ledger = Ledger(examples)
    with serving(chained(examples, batch_size=2, capacity=None)) as server:
        with connect(server) as one, connect(server) as other:
            batch = next(one)
            states = ledger.check(batch)
            other.drain(cancel=True)
            save_all(batch, states)
            refused = to_the_end(one, lambda b: save_all(b, ledger.check(b)))
            other.drain(cancel=True)
            other.drain()
            assert next(other, None) is None
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["dropped"] == {"cancelled": 12}
    assert [type(error) for error in refused] == [headrace.Cancelled] * 3
    assert "cancel=True" in str(refused[0])
    assert sorted(ledger.seen) == [(key, 0) for key in sorted(ledger.of)]


def test_a_refused_save_that_no_step_has_raised_is_raised_by_close():
    examples = of_counts([3] * 6)
    with serving(chained(examples, batch_size=2)) as server:
        with connect(server) as one, connect(server) as other:
            batch = next(one)
            states = Ledger(examples).check(batch)
            other.drain(cancel=True)
            save_all(batch, states)
            with pytest.raises(headrace.Cancelled, match="cancel=True"):
                one.close()


# Refusals
