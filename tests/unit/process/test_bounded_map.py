"""The last entries are remembered, and the first value of each."""

from __future__ import annotations

from headrace_server.process.bounded_map import BoundedMap


def test_a_further_entry_takes_the_place_of_the_oldest():
    known = BoundedMap[str, int](2)
    known["a"], known["b"] = 1, 2
    known["a"] = 3
    assert known == {"a": 3, "b": 2}, "an entry that changes is no older and no younger"
    known["c"] = 4
    assert known == {"b": 2, "c": 4}


def test_the_first_value_of_a_key_stands():
    known = BoundedMap[str, float](2)
    assert known.first("a", 1.0) == 1.0 == known.first("a", 5.0)
    known.first("b", 2.0)
    known.first("c", 3.0)
    assert known == {"b": 2.0, "c": 3.0}
    del known["b"]
    assert known.first("b", 6.0) == 6.0
