"""Stages through whole servers, beyond what the drawn combinations show."""

from __future__ import annotations

import pytest

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
