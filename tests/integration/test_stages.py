"""Stages that draw, unfold rows give one stream, for all workers and despite deaths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather

import headrace
import headrace_server as hs

from . import user_functions as functions
from .serving import connect, kill_worker, serving
from .streams import frozen

Stream = list[Any]


def unfolded() -> hs.Pipeline:
    """Return a feed of nearly all stages."""
    numbers = hs.from_examples([{"i": i} for i in range(150)])
    pipeline = numbers.skip(30).concat(numbers.take(20)).shuffle(seed=5).repeat(3)
    pipeline = pipeline.flat_map(functions.pieces)
    drawing = pipeline.map(functions.shaken, seed=7).map(
        functions.all_shaken, vectorized=True, seed=7
    )
    return drawing.batch(8, dynamic_pad=True, pad_to_multiple=4)


def stream(
    pipeline: hs.Pipeline, kill_at: int | None = None, workers: int = 1, **options: Any
) -> Stream:
    """Return all batches; kill a worker after ``kill_at`` of them."""
    found: Stream = []
    with hs.run(pipeline, partitions=2, workers=workers, **options) as server:
        with connect(server) as feed:
            for batch in feed:
                found.append(frozen(batch))
                if len(found) == kill_at:
                    kill_worker(server)
    return found


def test_a_server_goes_on_from_its_state_between_two_outputs_of_an_example(tmp_path: Path) -> None:
    undisturbed = stream(unfolded())
    found: Stream = []
    for stop in (7, 13, 10**6):
        state = str(tmp_path / "state")
        with serving(unfolded(), partitions=2, state_dir=state) as server:
            with connect(server, commit="explicit") as feed:
                for _, batch in zip(range(stop), feed, strict=False):
                    found.append(frozen(batch))
                    batch.commit()
    assert found == undisturbed


def test_an_error_of_an_output_names_the_example_that_it_comes_from() -> None:
    pipeline = hs.from_examples([{"i": i} for i in range(30)]).flat_map(functions.pieces)
    with serving(pipeline.map(functions.fail_at_21).batch(4)) as server:
        with (
            pytest.raises(headrace.DataError, match="examples, record 21: map function"),
            connect(server) as feed,
        ):
            list(feed)


def test_servers_share_the_copies_of_remote_files(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"i": range(10)}), str(tmp_path / "a.arrow"), "uncompressed")
    pipeline = hs.read_arrow(f"file://{tmp_path}/a.arrow").batch(5)
    copies = tmp_path / "copies"
    for _ in range(2):
        with serving(pipeline, remote_cache=copies, remote_cache_bytes=2**20) as server:
            with connect(server) as feed:
                assert [batch["i"].tolist() for batch in feed] == [list(range(5)), [5, 6, 7, 8, 9]]
        (copy,) = copies.glob("*.copy")
        assert copy.read_bytes() == (tmp_path / "a.arrow").read_bytes()
    with pytest.raises(ValueError, match="remote_cache_bytes=1048576 needs remote_cache"):
        serving(pipeline, remote_cache_bytes=2**20)


def test_an_object_with_items_is_shuffled_exactly_as_is_what_a_function_returns() -> None:
    found = []
    for source in (
        hs.from_indexed("tests.integration.user_functions:sequence_of", 300),
        hs.from_indexed(functions.sequence_of(300)),
    ):
        with serving(source.shuffle(seed=1).batch(50)) as server, connect(server) as feed:
            found.append([i for batch in feed for i in batch["i"].tolist()])
    assert found[0] == found[1]
    assert sorted(found[0]) == list(range(300)) and max(found[0][:50]) > 200
