"""Class queues form the batches that one row after another would form, and count every lost row."""

from itertools import pairwise

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping import chance
from headrace_server.shaping.class_queues import ClassQueues, multinomial

from .drafts import plain, size_of

steady = settings(derandomize=True, deadline=None, database=None)


class ByHand:
    """One row at a time.  Draws of the mix are those of the machine."""

    def __init__(self, probs, batch_size, capacity, total, seed):
        self.seed = chance.derive(seed, chance.CLASSES, 0)
        self.batch_size, self.capacity, self.total = batch_size, capacity, total
        self.queues = [[] for _ in probs]
        self.number, self.batches, self.dropped = 0, [], {}
        self.set_probs(probs)

    def draw(self):
        self.wanted = multinomial(self.batch_size, self.probs, self.seed, self.number).tolist()

    def drop(self, reason, rows):
        if rows:
            self.dropped[reason] = self.dropped.get(reason, 0) + rows

    def set_probs(self, probs):
        self.probs = np.array(probs)
        self.draw()
        for queue, p in zip(self.queues, probs, strict=True):
            if p == 0:
                self.drop("never_wanted", len(queue))
                queue.clear()
        self.form()

    def form(self):
        while all(len(q) >= w for q, w in zip(self.queues, self.wanted, strict=True)):
            batch = []
            for queue, wanted in zip(self.queues, self.wanted, strict=True):
                batch += queue[:wanted]
                del queue[:wanted]
            self.batches.append(batch)
            self.number += 1
            self.draw()

    def row(self, row, label):
        queue = self.queues[label]
        if self.probs[label] == 0:
            self.drop("never_wanted", 1)
        elif (
            sum(map(len, self.queues)) < self.total
            or len(queue) < self.capacity
            or len(queue) < self.wanted[label]
        ):
            queue.append(row)
            self.form()
        else:
            self.drop("overflow", 1)

    def finish(self):
        self.drop("remainder", sum(map(len, self.queues)))


def take_all(shape, starts, out, each_step=lambda shape: shape):
    while (draft := shape.next_draft()) is not None:
        rows = []
        for part in draft.parts:
            own = part.rows
            own = range(own.start, own.stop) if isinstance(own, slice) else own.tolist()
            rows += [starts[part.chunk] + row for row in own]
        out.append(rows)
        shape = each_step(shape)
    return shape


MIXES = [[0.5, 0.3, 0.2], [0.0, 0.9, 0.1], [1.0, 0.0, 0.0], [0.01, 0.01, 0.98]]


@st.composite
def inputs(draw):
    rows = draw(st.integers(0, 80))
    labels = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    edges = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=5))})
    changes = draw(st.dictionaries(st.integers(0, 5), st.sampled_from(MIXES), max_size=2))
    size, capacity = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    total, seed = draw(st.integers(1, 30)), draw(st.integers(0, 5))
    return labels, edges, changes, (size, capacity, total, seed), draw(st.sampled_from(MIXES))


@steady
@given(inputs())
def test_batches_and_drops_are_those_of_one_row_at_a_time_with_restores_at_every_step(given):
    labels, edges, changes, (size, capacity, total, seed), probs = given

    def machine():
        return ClassQueues(3, probs, size, capacity, seed, total)

    def restored(shape):
        other = machine()
        other.restore(msgpack.unpackb(msgpack.packb(shape.snapshot()), strict_map_key=False))
        assert other.snapshot() == shape.snapshot()
        assert other.chunks() == shape.chunks()
        assert other.waits_for() == shape.waits_for()
        return other

    hand, shape, starts, out = ByHand(probs, size, capacity, total, seed), machine(), {}, []
    for chunk, (start, stop) in enumerate(pairwise(edges)):
        if chunk in changes:
            hand.set_probs(changes[chunk])
            assert shape.set_probs(changes[chunk]) == len(out)
            shape = take_all(restored(shape), starts, out, restored)
        starts[chunk] = start
        for row in range(start, stop):
            hand.row(row, labels[row])
        shape.offer(chunk, stop - start, {"label": np.array(labels[start:stop], np.int8)})
        shape = take_all(restored(shape), starts, out, restored)
        assert shape.stats()["waiting"] == [len(queue) for queue in hand.queues]
        assert shape.waiting() <= total + 3 * capacity + size
    hand.finish()
    shape.finish()
    assert take_all(shape, starts, out) is shape
    assert out == hand.batches
    assert shape.dropped() == hand.dropped
    assert sum(map(len, hand.batches)) + sum(shape.dropped().values()) == len(labels)
    for rows in out:
        assert [labels[row] for row in rows] == sorted(labels[row] for row in rows)
    assert shape.waiting() == 0 and shape.chunks() == set()


def test_class_counts_reach_the_mix_within_five_sigma_and_zero_is_never_drawn():
    probs = np.array([0.0, 0.6, 0.0, 0.399, 0.001, 0.0])
    counts = sum(multinomial(32, probs, 7, n) for n in range(2000))
    assert counts.sum() == 64_000
    assert (np.abs(counts - 64_000 * probs) <= 5 * np.sqrt(64_000 * probs * (1 - probs))).all()


def test_a_draw_on_an_edge_never_falls_to_a_class_of_probability_zero(monkeypatch):
    drawn = np.array([0.0, 0.25, 1 - 2**-53, 0.25])
    monkeypatch.setattr(chance, "uniform", lambda *_: drawn)
    assert multinomial(4, np.array([0, 0.25, 0, 0.75, 0]), 7, 0).tolist() == [0, 1, 0, 3, 0]


def test_a_batch_has_its_number_alone_for_its_chance_and_it_never_changes():
    probs = np.array([0.2, 0.3, 0.5])
    assert [multinomial(8, probs, 7, n).tolist() for n in (0, 1, 10**6)] == [
        [0, 2, 6],
        [0, 1, 7],
        [2, 1, 5],
    ]


def test_one_class_in_a_thousand_is_waited_for_and_a_flood_stays_bounded():
    """99.9 % of the rows are of class 0; half of each batch is to be of class 1."""
    shape = ClassQueues(2, [0.5, 0.5], 8, 16, seed=1, max_examples_in_flight=500)
    batches = 0
    for chunk in range(100):
        shape.offer(chunk, 1000, {"label": (np.arange(1000) == 500).astype(np.uint8)})
        while shape.next_draft() is not None:
            batches += 1
        assert shape.waiting() <= 500 + 2 * 16 + 8
    assert 20 <= batches <= 30  # 100 rows of class 1, four to a batch
    assert shape.dropped()["overflow"] > 90_000


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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_classes": 3}, "num_classes=3, the pipeline has num_classes=2"),
        ({"changes": []}, "'changes' is empty"),
        ({"formed": [[[[0, 2]], 2]]}, "'formed' has more rows"),
        ({"changes": [[0, [1.0]]]}, "probs has 1 classes"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_by_field_and_changes_nothing(change, text):
    shape = ClassQueues(2, [1.0, 0.0], 2)
    shape.offer(0, 3, {"label": np.zeros(3, int)})
    before = shape.snapshot()
    with pytest.raises(ValueError, match=text):
        shape.restore({**before, **change})
    assert shape.snapshot() == before


def test_another_size_holds_from_the_next_batch_that_is_not_formed():
    machine = ClassQueues(2, [0.5, 0.5], 6, seed=3)
    machine.offer(0, 40, {"label": np.arange(40) % 2})
    formed = machine.first_not_formed
    first = machine.next_draft()
    machine.set_batch_sizes([4])
    assert machine.first_not_formed >= formed > 1
    twin = ClassQueues(2, [0.5, 0.5], 6, seed=3)
    twin.restore(msgpack.unpackb(msgpack.packb(machine.snapshot())))
    drawn = []
    for one in (machine, twin):
        one.offer(1, 400, {"label": np.arange(400) % 2})
        drafts = []
        while (draft := one.next_draft()) is not None:
            drafts.append(draft)
        drawn.append(drafts)
    assert [plain(draft) for draft in drawn[0]] == [plain(draft) for draft in drawn[1]]
    rows = [size_of(draft) for draft in drawn[0]]
    assert size_of(first) == 6
    assert rows == [6] * (formed - 1) + [4] * (len(rows) - formed + 1) and len(rows) > 80
    labels = [
        sum(int(sum(np.arange(400)[part.rows] % 2)) for part in draft.parts)
        for draft in drawn[0][formed:]
    ]
    assert len({*labels}) > 2, "still by chance"
