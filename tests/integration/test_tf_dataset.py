"""A dataset takes its batches in groups, which only changes the time."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace.tf_groups import Groups
from tests.patience import PATIENCE_S, eventually

from .serving import arrived, connect, serving

pytestmark = pytest.mark.tf

#: Batches that are ready before a group is taken.
_READY = 8


#: Sizes of the groups that were handed over, the newest last.
_GROUPS: list[int] = []


@pytest.fixture(autouse=True)
def always_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let datasets take groups however slow this machine is, and note their sizes."""
    monkeypatch.setattr("headrace.tf_groups.group_size", lambda *_: _READY)
    next_group = Groups.next_group

    def noted(groups: Groups, number: int) -> list[Any]:
        group = next_group(groups, number)
        _GROUPS.append(len(group))
        return group

    monkeypatch.setattr(Groups, "next_group", noted)


def rows(n: int, repeat: int = 1) -> hs.Pipeline:
    examples = [{"i": i, "x": np.full(3, i, np.float32), "name": f"n{i}"} for i in range(n)]
    return hs.from_examples(examples).repeat(repeat, across_batches=False).batch(1)


@contextlib.contextmanager
def fed(pipeline: hs.Pipeline, partitions: int | None = None) -> Iterator[Any]:
    """Start a server, and yield a feed of it."""
    with serving(pipeline, partitions=partitions) as server:
        with headrace.connect(
            server.address, framework="tf", prefetch=16, timeout=PATIENCE_S
        ) as feed:
            yield feed


def amid_a_group(feed: Any, dataset: Any, count: int = 4) -> tuple[Any, list[int]]:
    """Return an iterator of a graph that is within a group, and the batches that it has pulled."""
    iterator = iter(dataset.take(-1))
    pulled = [int(next(iterator)["i"][0]) for _ in range(2)]
    eventually(lambda: feed.stats()["in_flight"] >= _READY + 2)
    pulled += [int(next(iterator)["i"][0]) for _ in range(count - 2)]
    assert _GROUPS[-1] == _READY
    return iterator, pulled


@pytest.mark.parametrize("ragged", [False, True])
def test_a_loop_in_python_and_the_graph_yield_equal_elements(tf: Any, ragged: bool) -> None:
    examples = [
        {"i": i, "x": np.full(i % 4, i, np.float32), "name": f"n{i}", "half": np.float16(i)}
        for i in range(12)
    ]
    source = hs.from_examples(examples).repeat(2, across_batches=False)
    shape = {"ragged": True} if ragged else {"dynamic_pad": True}
    with fed(source.bucket_by_sequence_length("x", 3, [2], **shape)) as feed:
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


def test_one_iterator_in_python_and_in_functions_of_tensorflow(tf: Any) -> None:
    @tf.function  # type: ignore[untyped-decorator]
    def pulled(elements: Any) -> Any:
        return next(elements)["i"]

    with fed(rows(30)) as feed:
        iterator = iter(feed.as_dataset())
        assert isinstance(iterator, tf.data.Iterator)
        seen = [int(next(iterator)["i"][0]), int(iterator.get_next()["i"][0])]
        for _ in range(5):
            seen += [int(pulled(iterator)[0]), int(next(iterator)["i"][0])]
        seen += [int(one["i"][0]) for one in iterator]
        assert seen == [*range(30)]
        with pytest.raises(tf.errors.OutOfRangeError):
            iterator.get_next()


def test_a_loop_in_python_commits_a_batch_when_it_asks_for_the_next_one(tf: Any) -> None:
    with serving(rows(10)) as server:
        with contextlib.suppress(KeyError), connect(server, framework="tf") as feed:
            for one in feed.as_dataset():
                if int(one["i"][0]) == 4:
                    raise KeyError
        with connect(server) as feed:
            assert [int(batch["i"][0]) for batch in feed] == [*range(4, 10)]


def test_the_next_iteration_the_loop_itself_and_another_dataset_go_on_amid_a_group(tf: Any) -> None:
    with fed(rows(60)) as feed:
        dataset = feed.as_dataset()
        iterator, seen = amid_a_group(feed, dataset)
        del iterator
        gc.collect()
        seen += [int(one["i"][0]) for one in dataset.take(2)]
        seen.append(int(next(feed)["i"][0]))
        seen += [int(one["i"][0]) for one in feed.as_dataset().map(lambda batch: batch)]
        assert seen == [*range(60)]


def test_an_idle_iterator_does_not_hold_up_the_end_of_the_feed(tf: Any) -> None:
    with fed(rows(30)) as feed:
        dataset = feed.as_dataset()
        idle, seen = amid_a_group(feed, dataset)
        seen += [int(one["i"][0]) for one in dataset]
        assert seen == [*range(30)]
        with pytest.raises(StopIteration):
            next(idle)


@pytest.mark.parametrize("raises", [False, True])
def test_leaving_amid_a_group_gives_back_what_was_not_pulled(tf: Any, raises: bool) -> None:
    with serving(rows(40)) as server:
        with contextlib.suppress(KeyError):
            with headrace.connect(
                server.address, framework="tf", prefetch=16, timeout=PATIENCE_S
            ) as feed:
                iterator, seen = amid_a_group(feed, feed.as_dataset())
                if raises:
                    seen.pop()
                    raise KeyError
        with pytest.raises(tf.errors.OpError, match="connect again"):
            next(iterator)
        with connect(server) as feed:
            seen += sorted(int(batch["i"][0]) for batch in feed)
        assert seen == [*range(40)]


def test_a_feed_is_taken_back_amid_a_group(tf: Any, tmp_path: Any) -> None:
    with serving(rows(40), state_dir=tmp_path) as server:
        with headrace.connect(
            server.address, framework="tf", prefetch=16, timeout=PATIENCE_S
        ) as feed:
            iterator, seen = amid_a_group(feed, feed.as_dataset())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that TensorFlow may have fetched ahead
                token = feed.snapshot()
            seen += [int(next(iterator)["i"][0]) for _ in range(2)]
            assert seen == [0, 1, 2, 3, 4, 5]
            feed.load_state_dict(token)
            assert [int(one["i"][0]) for one in iterator] == [*range(4, 40)]


@pytest.mark.parametrize("commit", ["on_next", "explicit"])
def test_a_snapshot_in_a_callback_of_fit_is_at_the_next_row_that_was_not_trained(
    tf: Any, tmp_path: Any, commit: str
) -> None:
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


def lanes(order: str = "lanes", states: dict[str, Any] | None = None) -> hs.Pipeline:
    """Return segments of one step: ``x`` is 100 times the example's number plus the step."""
    examples = [
        {"k": f"k{i}", "x": [[100 * i + step] for step in range(n)], "name": f"n{i}"}
        for i, n in enumerate([9, 11, 8, 12, 10, 7])
    ]
    return hs.from_examples(examples).batch_sequences_with_states(
        *("k", ["x"], ["name"], None, states or {}, 1, 3), order=order
    )


def keys_of(element: Any) -> list[bytes]:
    found: list[bytes] = element["key"].numpy().tolist()
    return found


def test_lanes_without_states_come_in_groups_and_none_is_lost_amid_one(
    tf: Any, tmp_path: Any
) -> None:
    with serving(lanes()) as server, connect(server) as feed:
        wanted = [batch.key.tolist() for batch in feed]
    with serving(lanes(), state_dir=tmp_path) as server:
        with headrace.connect(
            server.address, framework="tf", prefetch=16, timeout=PATIENCE_S
        ) as feed:
            dataset = feed.as_dataset()
            iterator = iter(dataset.take(-1))
            seen = [keys_of(next(iterator)) for _ in range(2)]
            arrived(server, feed, _READY + 2)
            seen += [keys_of(next(iterator)) for _ in range(2)]
            assert _GROUPS[-1] == _READY
            del iterator
            gc.collect()
            seen += [keys_of(element) for element in dataset.map(lambda one: one).take(3)]
            seen.append(next(feed).key.numpy().tolist())
            assert seen == wanted[:8]
        with connect(server) as feed:
            seen += [batch.key.tolist() for batch in feed]
    assert seen == wanted


@pytest.mark.parametrize("order", ["lanes", "arrival"])
def test_a_loop_in_python_and_the_graph_yield_equal_segments(tf: Any, order: str) -> None:
    """The states that a loop saves are those of its next batches."""
    _GROUPS.clear()
    with serving(lanes(order, {"h": hs.zeros((2,), "float32")})) as server:
        with connect(server, framework="tf", prefetch=0) as feed:
            dataset = feed.as_dataset()
            spec = dataset.element_spec
            found: list[dict[bytes, list[float]]] = []
            for data in (dataset.take(9), dataset.take(-1).take(9), dataset):
                found.append({})
                for element in data:
                    tf.nest.assert_same_structure(element, spec)
                    for value, one in zip(*map(tf.nest.flatten, (element, spec)), strict=True):
                        assert value.dtype == one.dtype
                        assert one.shape.is_compatible_with(value.shape)
                    state = element["state"]["h"]
                    steps = element["sequence"].numpy().tolist()
                    assert state.numpy().tolist() == [[float(step)] * 2 for step in steps]
                    feed.save_states(element["token"], {"h": state + 1})
                    found[-1] |= dict(zip(keys_of(element), steps, strict=True))
    assert [*map(len, found[:2])] == [27, 27] and sum(map(len, found)) == 57
    assert set(_GROUPS) == {1}


def test_tensors_of_a_group_outlive_iterator_feed_and_server(tf: Any) -> None:
    with fed(rows(60)) as feed:
        iterator, _ = amid_a_group(feed, feed.as_dataset())
        kept = [next(iterator) for _ in range(6)]
        del iterator
        list(feed.as_dataset())
    gc.collect()
    assert [int(one["i"][0]) for one in kept] == [*range(4, 10)]
    assert [one["name"].numpy()[0] for one in kept] == [b"n%d" % i for i in range(4, 10)]
    assert all((one["x"].numpy() == one["i"].numpy()).all() for one in kept)


def test_groups_end_where_the_shape_of_batches_changes(tf: Any) -> None:
    examples = [{"x": np.full(1 + i // 5 % 3, i, np.int64), "name": f"n{i}"} for i in range(60)]
    with fed(hs.from_examples(examples).batch(1, dynamic_pad=True)) as feed:
        dataset = feed.as_dataset(tokens=True)
        batches = list(dataset)
        assert [one["x"].numpy()[0].tolist() for one in batches] == [
            one["x"].tolist() for one in examples
        ]
        assert [one["name"].numpy()[0] for one in batches] == [b"n%d" % i for i in range(60)]
        assert len({int(one["token"]) for one in batches}) == 60


def test_under_a_strategy_the_count_is_that_of_one_variable(tf: Any) -> None:
    with fed(rows(40)) as feed:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            dataset = feed.as_dataset()
        iterator, seen = amid_a_group(feed, dataset)
        del iterator
        seen += [int(one["i"][0]) for one in dataset]
        assert seen == [*range(40)]


def test_each_iteration_is_an_epoch_and_no_group_crosses_its_end(tf: Any) -> None:
    with fed(rows(20, repeat=3), partitions=1) as feed:
        dataset = feed.as_dataset()
        iterator, seen = amid_a_group(feed, dataset)
        epochs = [seen + [int(one["i"][0]) for one in iterator]]
        epochs += [[int(one["i"][0]) for one in dataset] for _ in range(3)]
        assert epochs == [[*range(20)]] * 3 + [[]]


def test_fit_goes_through_epochs_and_validates_on_whole_passes(tf: Any) -> None:
    import keras

    pipelines = {"train": rows(20, repeat=3), "test": rows(7, repeat=3)}
    with serving(pipelines) as server, contextlib.ExitStack() as stack:

        def data(name: str) -> Any:
            feed = stack.enter_context(connect(server, feed=name, framework="tf"))
            return feed.as_dataset().map(lambda batch: (batch["x"], batch["i"]))

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        trained, tested = [0] * 3, [0] * 3
        epoch = 0

        class Counts(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, number: int, logs: Any = None) -> None:
                nonlocal epoch
                epoch = number

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                trained[epoch] += 1

            def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
                tested[epoch] += 1

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            model.fit(
                data("train"),
                validation_data=data("test"),
                epochs=3,
                verbose=0,
                shuffle=False,
                callbacks=[Counts()],
            )
        assert trained == [20, 20, 20] and tested == [7, 7, 7]
