"""Stages through whole servers, beyond what the drawn combinations show."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

import headrace
import headrace_server as hs

from . import user_functions as functions
from .serving import connect, serving


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
