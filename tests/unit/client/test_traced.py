"""Batches of segments in a ``tf.function``: traces, saves, their order, and refusals."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace.batches.saving import Saving
from tests.integration.serving import fed

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("tensorflow")]
tf: Any = None

STEPS, UNITS = 3, 5
LANES = {"order": "lanes", "state_placement": "trainer"}


def sequences(**options: Any) -> hs.Pipeline:
    """Ten sequences of one to four segments; the first step of each row is its number."""
    rows = [
        {"key": f"k{i}", "x": np.full((STEPS * (1 + i % 4), 2), i, np.float32), "y": i}
        for i in range(10)
    ]
    initial = {"n": hs.zeros((), "int64"), "h": hs.zeros((UNITS,), "float32")}
    return hs.from_examples(rows).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=["y"],
        num_unroll=STEPS,
        **{"initial_states": initial, "batch_size": 4, **options},
    )


@pytest.fixture(scope="module")
def tensorflow() -> None:
    """Load it when the first test runs."""
    globals()["tf"] = pytest.importorskip("tensorflow")


connected = partial(fed, framework="tf")


@pytest.mark.parametrize("framework", ["tf", "numpy"])
@pytest.mark.parametrize("options", [{}, LANES], ids=["arrival", "lanes"])
def test_a_function_of_a_batch_is_traced_once_for_each_number_of_rows(framework, options):
    traced = []

    @tf.function
    def step(batch):
        traced.append(batch.batch_size)
        batch.save_state("n", batch.state("n") + 1)
        batch.save_state("h", batch.state("h") + batch.sequences["x"][:, :1, 0])
        facts = batch.sequence, batch.first, batch.last, batch.length, batch.insertion_index
        return batch.key, batch.next_key, batch.state("n"), batch.context["y"], facts

    rows = 0
    with connected(sequences(**options), framework=framework) as feed:
        for batch in feed:
            key, next_key, n, y, facts = step(batch)
            assert key.numpy().tolist() == batch.keys()
            assert next_key.numpy().tolist() == np.asarray(batch.next_key).tolist()
            assert n.numpy().tolist() == np.asarray(batch.sequence).tolist()
            assert (n.numpy() * y.numpy() == np.asarray(batch.state("h")).T).all()
            whole = batch.sequence, batch.first, batch.last, batch.length, batch.insertion_index
            for fact, wanted in zip(facts, whole, strict=True):
                assert (fact.numpy() == np.asarray(wanted)).all()
            rows += batch.rows
    assert rows == sum(1 + i % 4 for i in range(10))
    assert len(traced) == len(set(traced)) > 1, "batches get smaller at the end"


def test_a_save_runs_once_in_each_call_and_in_its_order(monkeypatch):
    """Nothing uses the operations of the first two lines; control dependencies order the third."""
    saved: list[str] = []

    @tf.function
    def step(batch):
        tf.py_function(lambda: saved.append("before"), [], [])
        save = batch.save_state("n", batch.state("n") + 1)
        with tf.control_dependencies([save]):
            loss = tf.reduce_sum(batch.sequences["x"])
        batch.save_state("h", batch.state("h"))
        return loss

    with connected(sequences()) as feed:
        save_token = Saving.save_token
        monkeypatch.setattr(
            Saving,
            "save_token",
            lambda saving, token, values: (saved.extend(values), save_token(saving, token, values)),
        )
        step(next(feed))
        step(next(feed))
        feed.commit()
        assert saved == ["before", "n", "h"] * 2


def test_a_whole_dataset_is_trained_and_saved_in_one_graph():
    @tf.function
    def whole(data):
        wrong, rows = tf.constant(0), tf.constant(0)
        for batch in data:
            wrong += tf.math.count_nonzero(
                batch["state"]["n"] != tf.cast(batch["sequence"], tf.int64), dtype=tf.int32
            )
            rows += tf.shape(batch["sequence"])[0]
            states = {"n": batch["state"]["n"] + 1, "h": batch["state"]["h"]}
            feed.save_states(batch["token"], states)
        return wrong, rows

    with connected(sequences()) as feed:
        wrong, rows = whole(feed.as_dataset())
        assert (int(wrong), int(rows)) == (0, 23)


def test_a_function_that_was_traced_does_not_keep_the_feed():
    @tf.function
    def step(batch):
        batch.save_state("n", batch.state("n"))

    def savings():
        return sum(type(one) is Saving for one in gc.get_objects())

    gc.collect()
    before = savings()
    with connected(sequences()) as feed:
        step(next(feed))
    left = weakref.ref(feed)
    del feed
    gc.collect()
    assert left() is None
    assert savings() == before
    with connected(sequences()) as feed:
        batch = next(feed)
        step(batch)
        batch.save_state("h", batch.state("h"))
        assert next(feed).rows == 4


# TensorFlow's own functions for state savers

CELLS = {
    "SimpleRNNCell": "h",
    "GRUCell": "h",
    "LSTMCell": ["h", "c"],
}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", CELLS)
def test_a_state_saving_rnn_computes_what_the_cell_does_over_whole_sequences(kind, in_graph):
    names = CELLS[kind]
    cell = getattr(tf.keras.layers, kind)(UNITS)
    cell.build((None, 2))
    initial = {name: hs.zeros((UNITS,), "float32") for name in ([*names])}

    def step(batch):
        inputs = tf.unstack(batch.sequences["x"], axis=1)
        outputs, _ = tf.compat.v1.nn.static_state_saving_rnn(
            cell, inputs, state_saver=batch, state_name=names, sequence_length=batch.length
        )
        return tf.stack(outputs, axis=1), batch.context["y"], batch.sequence

    step = tf.function(step) if in_graph else step
    found: dict[tuple[int, int], np.ndarray] = {}
    with connected(sequences(initial_states=initial)) as feed:
        for batch in feed:
            outputs, numbers, segments = (tensor.numpy() for tensor in step(batch))
            found.update(zip(zip(numbers, segments, strict=True), outputs, strict=True))
    assert len(found) == 23
    for i in (0, 3, 7):
        count = 1 + i % 4
        whole = tf.fill((1, STEPS * count, 2), float(i))
        wanted = tf.keras.layers.RNN(cell, return_sequences=True)(whole).numpy()[0]
        mine = np.concatenate([found[i, segment] for segment in range(count)])
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)
