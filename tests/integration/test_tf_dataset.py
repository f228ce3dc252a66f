"""A dataset yields what the loop over its feed would get, in Python and in graphs."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

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
