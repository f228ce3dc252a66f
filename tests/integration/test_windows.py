"""Windows with stride, context and phase through a whole server, in status and commands too."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import main

from .serving import connect, serving

STEPS = [9, 1, 14, 5, 6]


def examples() -> list[dict[str, Any]]:
    return [{"k": b"k%d" % i, "x": 100 * i + np.arange(t) + 1, "n": t} for i, t in enumerate(STEPS)]


def windows(**options: Any) -> hs.Pipeline:
    arguments = {
        "initial_states": {"s": hs.zeros((), "int64")},
        "num_unroll": 4,
        "batch_size": 2,
        "stride": 3,
        "left": 2,
        "right": 1,
        **options,
    }
    source = hs.from_examples(examples())
    return source.batch_sequences_with_states("k", {"x": "x", "again": "x"}, ["n"], **arguments)


def shown(feed: headrace.Feed) -> list[Any]:
    seen = []
    for batch in feed:
        x, lengths = batch.sequences["x"], (batch.left_length, batch.length, batch.right_length)
        assert (batch.sequences["again"] == x).all()
        seen.append((batch.keys(), x.tolist(), [one.tolist() for one in lengths]))
        batch.save_state("s", batch.state("s") + 1)
    return seen


def test_a_batch_shows_its_windows_and_counts_their_steps():
    with serving(windows()) as server, connect(server, prefetch=0) as feed:
        batches = shown(feed)
    assert batches[0] == (
        [b"00000_of_00003:k0", b"00000_of_00001:k1"],
        [[0, 0, 1, 2, 3, 4, 5], [0, 0, 101, 0, 0, 0, 0]],
        [[0, 0], [4, 1], [1, 0]],
    )
    assert batches[2][1][0] == [5, 6, 7, 8, 9, 0, 0] and batches[2][2] == [[2, 2], [3, 4], [0, 1]]


@pytest.mark.parametrize("kind", [{}, {"order": "lanes"}, {"phase": "random"}])
def test_empty_rows_of_ranks_in_step_have_no_steps_in_any_part(kind: dict[str, Any]):
    def train(server: hs.Server, rank: int) -> int:
        batches = 0
        with connect(server, rank=rank, world_size=2) as feed:
            for batch in feed:
                empty = ~batch.valid
                for one in (batch.sequences["x"], batch.left_length, batch.right_length):
                    assert not one[empty].any()
                batch.save_state("s", batch.state("s") + 1)
                batches += 1
        return batches

    with serving(windows(**kind)) as server, ThreadPoolExecutor(2) as pool:
        one, other = pool.map(train, [server] * 2, range(2))
    assert one == other > 0


def test_a_preview_counts_context_as_data_and_the_rest_as_padding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows = "\n".join(json.dumps({"k": f"k{i}", "x": [1.0] * t}) for i, t in enumerate(STEPS))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "feeds.py").write_text(f"""
import headrace_server as hs

def windows():
    source = hs.read_jsonl({str(tmp_path / "rows.jsonl")!r})
    return source.batch_sequences_with_states(
        "k", ["x"], [], initial_states={{"s": 0.0}}, num_unroll=4, batch_size=2, stride=3, left=2,
        right=1,
    )
""")
    main(["preview", f"{tmp_path}/feeds.py:windows", "-n", "1", "--json"])
    (batch,) = json.loads(capsys.readouterr().out)["batches"]
    column = next(one for one in batch["columns"] if one["name"] == "sequences:x")
    assert column["shape"] == [2, 7] and column["padding"] == round(1 - 6 / 14, 4)


def test_tensorflow_and_keras_see_the_context():
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("keras")
    import headrace.keras

    with serving(windows()) as server, connect(server, framework="tf") as feed:
        data = feed.as_dataset()
        assert data.element_spec["left_length"] == tf.TensorSpec((None,), tf.int32, "left_length")
        batches = headrace.keras.batches(feed, lambda batch: (batch["sequences"]["x"],))
        ticket, x = next(iter(batches))
        assert x.shape == (2, 7)
        assert (ticket["weights"].numpy() > 0).tolist() == [
            [False, False, True, True, True, True, False],
            [False, False, True, False, False, False, False],
        ]
