"""A dataset yields what the loop over its feed would get, in Python and in graphs."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace.batches.batch import Batch
from tests.patience import PATIENCE_S, eventually

from .serving import connect, fed, serving

pytestmark = pytest.mark.tf


def rows(n: int, repeat: int = 1) -> hs.Pipeline:
    examples = [{"i": i, "x": np.full(3, i, np.float32), "name": f"n{i}"} for i in range(n)]
    return hs.from_examples(examples).repeat(repeat, across_batches=False).batch(1)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_loop_in_python_and_the_graph_yield_equal_elements(tf, ragged):
    examples = [
        {"i": i, "x": np.full(i % 4, i, np.float32), "name": f"n{i}", "half": np.float16(i)}
        for i in range(12)
    ]
    source = hs.from_examples(examples).repeat(2, across_batches=False)
    shape = {"ragged": True} if ragged else {"dynamic_pad": True}
    with fed(source.bucket_by_sequence_length("x", 3, [2], **shape), "tf", prefetch=16) as feed:
        dataset = feed.as_dataset(facts=["length"], tokens=True)
        by_loop, by_graph = list(dataset), list(dataset.take(-1))
        tokens = [int(one.pop("token")) for one in [*by_loop, *by_graph]]
        assert len(set(tokens)) == len(by_loop) + len(by_graph) == 8
        for one, other in zip(by_loop, by_graph, strict=True):
            assert list(one) == list(other)
            tf.nest.assert_same_structure(one, other, expand_composites=True)
            parts = [tf.nest.flatten(each, expand_composites=True) for each in (one, other)]
            for value, equal in zip(*parts, strict=True):
                assert value.dtype == equal.dtype and value.shape == equal.shape
                assert value.numpy().tolist() == equal.numpy().tolist()


def test_one_iterator_in_python_and_in_functions_of_tensorflow(tf):
    @tf.function  # type: ignore[untyped-decorator]
    def pulled(elements: Any) -> Any:
        return next(elements)["i"]

    with fed(rows(30), "tf", prefetch=16) as feed:
        iterator = iter(feed.as_dataset())
        assert isinstance(iterator, tf.data.Iterator)
        seen = [int(next(iterator)["i"][0]), int(iterator.get_next()["i"][0])]
        for _ in range(5):
            seen += [int(pulled(iterator)[0]), int(next(iterator)["i"][0])]
        seen += [int(one["i"][0]) for one in iterator]
        assert seen == [*range(30)]
        with pytest.raises(tf.errors.OutOfRangeError):
            iterator.get_next()


def here(feed: Any, number: int) -> None:
    """Wait until so many batches are at the trainer."""
    eventually(lambda: feed._readings()[2] >= number)


def test_small_batches_come_together_and_leave_as_one_at_a_time(tf, tmp_path):
    """The graph takes several, and they are committed and go back as if it had taken one."""
    options = {"framework": "tf", "commit": "explicit", "prefetch": 16}
    with serving(rows(20, repeat=2), state_dir=tmp_path) as server:
        with connect(server, framework="tf") as other:
            spec = other.as_dataset(tokens=True).element_spec
        with connect(server, **options) as feed:
            dataset = feed.as_dataset(tokens=True)
            assert dataset.element_spec == spec
            iterator = iter(dataset.take(5))
            here(feed, 16)
            seen = [next(iterator)]
            # nothing that a user sees shows it: the trainer has all that the graph has taken
            assert feed._link.member.trainer.in_hand == 8
            seen += iterator
            feed.commit([int(one["token"]) for one in seen[:3]])
            token = feed.snapshot()
            for i, one in enumerate(seen):
                values = [one[name].numpy().tolist() for name in ("i", "x", "name")]
                assert values == [[i], [[float(i)] * 3], [b"n%d" % i]]
            del iterator, one
            epochs: list[list[int]] = [[], []]  # the rest of the first, and the second
            for numbers in epochs:
                for one in dataset.take(-1):
                    numbers.append(int(one["i"][0]))
                    feed.commit(int(one["token"]))
            assert epochs == [[*range(3, 20)], [*range(20)]]
        with connect(server, resume=token) as feed:
            assert int(next(feed)["i"][0]) == 3


def test_batches_before_an_error_come_first(tf, monkeypatch):
    array = Batch.array

    def failing(batch: Any, name: str) -> Any:
        if batch.number == 5:
            raise ValueError("the sixth is broken")
        return array(batch, name)

    monkeypatch.setattr(Batch, "array", failing)
    with fed(rows(40), "tf", commit="explicit", prefetch=16) as feed:
        iterator = iter(feed.as_dataset().take(-1))
        here(feed, 16)
        assert [int(next(iterator)["i"][0]) for _ in range(5)] == [*range(5)]
        with pytest.raises(tf.errors.InvalidArgumentError, match="the sixth is broken"):
            next(iterator)
        assert int(next(iterator)["i"][0]) == 6


def test_the_batches_before_those_of_another_size_come_first(tf):
    endless = hs.from_examples([{"i": i} for i in range(10)]).repeat().batch(1)
    with serving(endless, max_credits=4096) as server:
        with connect(server, framework="tf", commit="explicit", prefetch=4) as feed:
            iterator = iter(feed.as_dataset().take(-1))
            seen = [int(next(iterator)["i"][0])]
            (since,) = feed.set_batch_size(3).values()
            seen += [int(next(iterator)["i"][0]) for _ in range(since - 1)]
            assert seen == [i % 10 for i in range(since)]
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected \[1\] but got"):
                next(iterator)


def test_two_iterators_in_graphs_share_a_feed(tf):
    with fed(rows(40), "tf", commit="explicit", prefetch=16) as feed:
        one, other = iter(feed.as_dataset().take(20)), iter(feed.as_dataset().take(12))
        seen = [[int(next(it)["i"][0]) for it in (one, other)] for _ in range(8)]
        firsts, seconds = map(list, zip(*seen, strict=True))
        assert firsts == sorted(firsts) and seconds == sorted(seconds)
        assert len({*firsts, *seconds}) == 16


def test_steps_at_once_train_all_where_a_trainer_may_hold_few_batches(tf):
    import keras

    import headrace.keras

    class Count(keras.callbacks.Callback):  # type: ignore[misc]
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps = batch + 1

    with serving(rows(30), max_credits=3) as server:
        with connect(server, framework="tf", commit="explicit") as feed:
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=3)
            data, count = feed.as_dataset().map(lambda batch: (batch["x"], batch["i"])), Count()
            callbacks = [count, headrace.keras.CommitTrained(feed)]
            model.fit(data, steps_per_epoch=30, shuffle=False, verbose=0, callbacks=callbacks)
        server.wait(PATIENCE_S)
        assert count.steps == 30 and server.stats()["default"]["batches"] == 30


@pytest.mark.parametrize("raises", [False, True])
def test_leaving_gives_back_what_was_not_pulled(tf, raises):
    with serving(rows(40)) as server:
        with contextlib.suppress(KeyError):
            with headrace.connect(
                server.address, framework="tf", prefetch=16, timeout=PATIENCE_S
            ) as feed:
                iterator = iter(feed.as_dataset().take(-1))
                seen = [int(next(iterator)["i"][0]) for _ in range(4)]
                if raises:
                    seen.pop()
                    raise KeyError
        with pytest.raises(tf.errors.OpError, match="connect again"):
            next(iterator)
        with connect(server) as feed:
            seen += sorted(int(batch["i"][0]) for batch in feed)
        assert seen == [*range(40)]


@pytest.mark.parametrize("commit", ["on_next", "explicit"])
def test_a_snapshot_in_a_callback_of_fit_is_at_the_next_row_that_was_not_trained(
    tf, tmp_path, commit
):
    import keras

    import headrace.keras

    trained: list[int] = []
    tokens: list[Any] = []

    class Net(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            trained.append(int(data[1].numpy()[0]))
            return super().train_step(data)

    with serving(rows(60), state_dir=tmp_path) as server:
        with headrace.connect(
            server.address, framework="tf", prefetch=16, timeout=PATIENCE_S, commit=commit
        ) as feed:

            class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    if len(trained) == 21:
                        tokens.append(feed.snapshot())

            model = Net([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=True)
            data = feed.as_dataset().map(lambda batch: (batch["x"], batch["i"]))
            first = [headrace.keras.CommitTrained(feed)] if commit == "explicit" else []
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="snapshot")
                model.fit(
                    data,
                    steps_per_epoch=8,
                    epochs=4,
                    verbose=0,
                    shuffle=False,
                    callbacks=[*first, Checkpoint()],
                )
        assert trained == [*range(32)]
        with connect(server, resume=tokens[0]) as feed:
            assert int(next(feed)["i"][0]) == 21
