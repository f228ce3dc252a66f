"""States go through TensorFlow, torch and JAX without a copy that is not needed, bit for bit.

One set of tests drives all frameworks by the same few functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .serving import serving
from .test_tensorflow import address_of, is_in_a_segment

UNROLL = 4
UNITS = 16  # one row fills a cache line: every row's states are aligned


class TensorFlow:
    name = "tf"

    def __init__(self, tf: Any) -> None:
        self.tf = tf

    def address(self, value: Any) -> int:
        return address_of(value)

    def made(self, array: np.ndarray, dtype: str = "float32") -> Any:
        return self.tf.cast(self.tf.constant(array), dtype)

    def like(self, value: Any) -> dict[str, Any]:
        """Yield a value in all forms in which training may have it."""
        tf = self.tf
        turned = tf.transpose(tf.identity(tf.transpose(value)))
        return {"a_variable": tf.Variable(value), "turned": turned}


class Torch:
    name = "torch"

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def address(self, value: Any) -> int:
        return int(value.data_ptr())

    def made(self, array: np.ndarray, dtype: str = "float32") -> Any:
        return self.torch.tensor(array).to(getattr(self.torch, dtype))

    def like(self, value: Any) -> dict[str, Any]:
        asked = value.clone().requires_grad_()
        return {
            "asked_for_a_gradient": asked,
            "of_a_graph": asked * 1,
            "turned": value.t().contiguous().t(),
            "a_parameter": self.torch.nn.Parameter(value.clone()),
        }


class Jax:
    name = "jax"

    def __init__(self, jax: Any) -> None:
        self.jax = jax

    def address(self, value: Any) -> int:
        return int(value.unsafe_buffer_pointer())

    def made(self, array: np.ndarray, dtype: str = "float32") -> Any:
        return self.jax.numpy.asarray(array, dtype)

    def like(self, value: Any) -> dict[str, Any]:
        return {"of_jit": self.jax.jit(lambda v: v * 1)(value), "turned": value.T.copy().T}


@pytest.fixture(params=["tf", "torch", "jax"])
def framework(request: pytest.FixtureRequest) -> Any:
    modules = {"tf": "tensorflow", "torch": "torch", "jax": "jax"}
    module = pytest.importorskip(modules[request.param])
    return {"tf": TensorFlow, "torch": Torch, "jax": Jax}[request.param](module)


def lines(n: int = 24, batch_size: int = 8, states: Any = None, **options: Any) -> hs.Pipeline:
    random = np.random.default_rng(5)
    examples = []
    for number in range(n):
        x = random.normal(size=(int(random.integers(5, 30)), 2)).astype(np.float32)
        examples.append({"key": f"e{number}", "x": x})
    states = {"h": hs.zeros((UNITS,), "float32")} if states is None else states
    return hs.from_examples(examples).batch_sequences_with_states(
        "key", ["x"], [], None, states, UNROLL, batch_size, **options
    )


def connected(server: Any, framework: Any, **options: Any) -> headrace.Feed:
    options = {"timeout": PATIENCE_S, "prefetch": 0, **options}
    return headrace.connect(server.address, framework=framework.name, **options)


def bits(value: Any) -> bytes:
    return np.ascontiguousarray(value).view(np.uint8).tobytes()


# Copies


def test_states_and_sequences_are_views_of_the_shared_memory(framework):
    with serving(lines()) as server, connected(server, framework) as feed:
        batch = next(feed)
        for name, value in (("state:h", batch.state("h")), ("sequences:x", batch.sequences["x"])):
            assert framework.address(value) == batch.array(name).ctypes.data, name
            assert is_in_a_segment(framework.address(value)), name
        assert batch.state("h") is batch.state("h")


# What may be saved


PLACEMENTS = ("server", "trainer")


def in_both_placements(names: Any, states: Any = None) -> dict[str, hs.Pipeline]:
    """Return feeds of four sequences in lanes, one for every name and placement of states."""
    return {
        f"{name}.{placement}": lines(4, 4, state, order="lanes", state_placement=placement)
        for name in names
        for placement in PLACEMENTS
        for state in [states(name) if states else None]
    }


def test_what_is_saved_comes_back_whatever_form_it_had(framework, way):
    array = np.random.default_rng(0).normal(size=(4, UNITS)).astype(np.float32)
    plain = framework.made(array)

    def forms() -> dict[str, Any]:
        like = framework.like(plain)
        return {"plain": plain, **like, "numpy": array.copy(), "a_list": array.tolist()}

    feeds = in_both_placements(forms())
    with serving(feeds) as server:
        for name in feeds:
            with connected(server, framework, feed=name) as feed:
                value = forms()[name.rpartition(".")[0]]
                next(feed).save_state("h", value)
                if hasattr(value, "assign"):  # the training goes on with it
                    value.assign(value * 9)
                elif isinstance(value, np.ndarray):
                    value[:] = 9
                got = next(feed).state("h")
                assert type(got) is type(plain), name
                assert bits(got) == bits(array), name


def test_states_of_other_dtypes_come_back_as_they_were(framework):
    dtypes = ("bfloat16", "float16", "int8", "int32", "bool", "complex64")
    feeds = in_both_placements(dtypes, lambda dtype: {"h": hs.zeros((3,), dtype)})
    with serving(feeds) as server:
        for name in feeds:
            value = framework.made(np.array([[1, 0, 3]] * 4), name.partition(".")[0])
            with connected(server, framework, feed=name) as feed:
                batch = next(feed)
                assert batch.state("h").dtype == value.dtype, name
                batch.save_state("h", value)
                got = next(feed).state("h")
                assert got.dtype == value.dtype, name
                assert np.asarray(got == value).all(), name
