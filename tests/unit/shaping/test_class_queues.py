"""Class queues form the batches that one row after another would form, and count every lost row."""

import numpy as np
import pytest

from headrace_server.shaping import chance
from headrace_server.shaping.class_queues import ClassQueues, multinomial

from .drafts import size_of


def test_a_draw_on_an_edge_never_falls_to_a_class_of_probability_zero(monkeypatch):
    drawn = np.array([0.0, 0.25, 1 - 2**-53, 0.25])
    monkeypatch.setattr(chance, "uniform", lambda *_: drawn)
    assert multinomial(4, np.array([0, 0.25, 0, 0.75, 0]), 7, 0).tolist() == [0, 1, 0, 3, 0]


def test_a_missing_class_is_named_and_ends_the_feed_with_the_source():
    shape = ClassQueues(3, [0.5, 0.5, 0.0], 4, seed=1)
    shape.offer(0, 9, {"label": np.array([0, 0, 0, 0, 0, 0, 2, 2, 0])})
    assert shape.next_draft() is None
    assert shape.waits_for() == "batch 0 waits for class 1 (0 of 3 rows are here)"
    shape.finish()
    assert shape.next_draft() is None
    assert shape.waits_for() == "nothing"
    assert shape.dropped() == {"never_wanted": 2, "remainder": 7}


def test_only_some_of_many_missing_classes_are_named():
    shape = ClassQueues(100, np.full(100, 0.01), 50)
    assert shape.waits_for().endswith(" more classes")
    assert shape.waits_for().count("class ") == 5


def test_a_new_mix_holds_from_the_next_batch_on_and_frees_a_batch_that_waits():
    shape = ClassQueues(2, [0.5, 0.5], 4, seed=1)
    shape.offer(0, 8, {"label": np.zeros(8, int)})
    assert shape.next_draft() is None
    assert shape.set_probs([0.0, 1.0]) == 0  # what waits of class 0 is not wanted any more
    assert shape.dropped() == {"never_wanted": 8}
    assert shape.set_probs([1.0, 0.0]) == 0
    shape.offer(1, 4, {"label": np.zeros(4, int)})
    assert shape.set_probs([0.5, 0.5]) == 1
    assert shape.stats()["changes"][0] == [[0, [1.0, 0.0]], [1, [0.5, 0.5]]]
    assert size_of(shape.next_draft()) == 4
    with pytest.raises(ValueError, match=r"probs sums to 0\.9"):
        shape.set_probs([0.5, 0.4])
    with pytest.raises(ValueError, match="probs has 1 classes; there are 2"):
        shape.set_probs([1.0])
    assert shape.stats()["changes"][0][-1] == [1, [0.5, 0.5]]
