"""Programs that know nothing of headrace handle its batches as they handle any mapping."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

from .serving import fed, in_segments

EXAMPLES = [{"x": np.full(3, i, np.float32), "i": i, "name": b"n%d" % i} for i in range(8)]
LONG = [{"key": b"k%d" % i, "x": np.full((5, 2), i, np.float32), "y": i} for i in range(4)]


def plain() -> hs.Pipeline:
    return hs.from_examples(EXAMPLES).bucket_by_sequence_length("i", 4, [4])


def segments(placement: str) -> hs.Pipeline:
    lanes = {"order": "lanes"} if placement == "trainer" else {}
    states = {"h": hs.zeros((2,), "float32")}
    options = {"batch_size": 4, "state_placement": placement, **lanes}
    return in_segments(
        hs.from_examples(LONG), input_context=["y"], initial_states=states, **options
    )


def is_first(values: Any) -> bool:
    """Whether columns are those of the first four examples."""
    x, i = np.asarray(values["x"]), np.asarray(values["i"])
    return bool((x == i[:, None]).all()) and sorted(i.tolist()) == [0, 1, 2, 3]


# Any framework


@pytest.mark.parametrize("framework", ["numpy", "tf", "torch", "jax"])
def test_a_batch_is_copied_pickled_and_rebuilt_as_a_mapping(framework):
    if framework != "numpy":
        pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    with fed(plain(), framework) as feed:
        batch = next(feed)
        names = ["x", "i", "name"]
        for rebuilt in (
            dict(batch),
            type(batch)(dict(batch.items())),
            type(batch)((name, batch[name]) for name in batch),
            pickle.loads(pickle.dumps(batch)),  # noqa: S301
            copy.deepcopy(batch),
        ):
            assert type(rebuilt) is dict and list(rebuilt) == names and is_first(rebuilt)
        twin = copy.copy(batch)
        assert isinstance(twin, headrace.Batch) and twin is not batch
        assert twin["x"] is batch["x"] and twin.token == batch.token and twin.bucket == 0
        moved = batch.to("cpu")
        assert isinstance(moved, headrace.Batch) and is_first(moved)
        assert list(moved) == names and np.asarray(moved.length).tolist() == [0, 1, 2, 3]
        moved.commit()
        if framework != "torch":
            with pytest.raises(
                TypeError, match=rf"framework=\"torch\"; this feed has '{framework}"
            ):
                batch.pin_memory()


# Torch and what is made of it


def test_a_moved_batch_of_torch_is_on_its_device_with_all_that_it_had():
    torch = pytest.importorskip("torch")
    with fed(plain(), "torch") as feed:
        batch = next(feed)
        moved = batch.to(torch.device("meta"), non_blocking=True)
        assert moved["x"].device.type == moved["i"].device.type == "meta"
        assert moved.length.device.type == "meta" and moved["name"] == batch["name"]
        assert batch["x"].device.type == "cpu"
        if not torch.accelerator.is_available():
            with pytest.raises(RuntimeError):  # torch's own: there is nothing to copy to
                batch.pin_memory()
        else:
            assert batch.pin_memory()["x"].is_pinned()


# Trees


def test_transformations_of_jax_go_through_a_batch():
    jax = pytest.importorskip("jax")
    with fed(plain(), "jax") as feed:
        batch = next(feed)
        doubled = jax.tree.map(lambda leaf: leaf * 2, batch)
        assert type(doubled) is dict and list(doubled) == ["x", "i", "name"]
        assert (np.asarray(doubled["x"]) == 2 * np.asarray(batch["x"])).all()
        numbers = {name: batch[name] for name in ("x", "i")}
        total = jax.jit(lambda columns: columns["x"].sum() + columns["i"].sum())(numbers)
        assert float(total) == 4 * 6


# Segments


@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_states_saved_to_a_moved_batch_of_segments_are_those_of_the_batch(placement):
    torch = pytest.importorskip("torch")
    with fed(segments(placement), "torch") as feed:
        steps = 0
        for batch in feed:
            moved = batch.to("cpu").to(torch.device("cpu"))
            assert moved.rows == 4 and (moved.sequences["x"] == batch.sequences["x"]).all()
            assert (moved.context["y"] == batch.context["y"]).all()
            assert (moved.first == batch.first).all() and moved.key == batch.key
            assert (moved.state("h") == steps).all()
            assert batch.to("meta").state("h").device.type == "meta"
            steps += 1
            moved.save_state("h", moved.state("h") + 1)
            with pytest.raises(headrace.StateError, match="'h'"):
                batch.save_state("h", batch.state("h"))
        assert steps == 3


def test_a_batch_of_segments_cannot_be_pickled_and_leaves_no_cycle():
    with fed(segments("server"), "numpy") as feed:
        batch = next(feed)
        with pytest.raises(TypeError, match=r"cannot be pickled.*batch\.arrays\(\)"):
            pickle.dumps(batch)
        batch.to("cpu").save_state("h", batch.state("h"))
        gc.disable()
        try:
            gone = weakref.ref(batch)
            del batch
            assert gone() is None
        finally:
            gc.enable()
        for batch in feed:
            batch.save_state("h", batch.state("h"))
