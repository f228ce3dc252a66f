"""Counts of all forms are added by name."""

from __future__ import annotations

import pytest

from headrace_server.process.statuses import added


def test_numbers_lists_and_dicts_are_added_by_name():
    one = {"a": 1, "list": [1, 2], "more": {"x": 1.5}}
    other = {"a": 2, "b": 5, "list": [10, 20], "more": {"x": 1.0, "y": 3}}
    assert added([one, other]) == {"a": 3, "b": 5, "list": [11, 22], "more": {"x": 2.5, "y": 3}}
    assert one == {"a": 1, "list": [1, 2], "more": {"x": 1.5}}
    assert added([]) == {} and added([{"a": []}, {"a": [1]}]) == {"a": [1]}


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="zip"):
        added([{"a": [1, 2]}, {"a": [1]}])
