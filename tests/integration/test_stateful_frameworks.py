"""States go through TensorFlow, torch and JAX without a copy that is not needed, bit for bit.

One set of tests drives all frameworks by the same few functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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


def test_states_and_sequences_are_views_of_the_shared_memory(framework: Any) -> None:
    with serving(lines()) as server, connected(server, framework) as feed:
        batch = next(feed)
        for name, value in (("state:h", batch.state("h")), ("sequences:x", batch.sequences["x"])):
            assert framework.address(value) == batch.array(name).ctypes.data, name
            assert is_in_a_segment(framework.address(value)), name
        assert batch.state("h") is batch.state("h")


def test_a_saved_state_is_copied_once_from_where_the_framework_has_it(
    framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    plain = np.copyto

    def counted(to: np.ndarray, source: np.ndarray, *more: Any) -> None:
        copied.append(source.ctypes.data)
        plain(to, source, *more)

    with serving(lines()) as server, connected(server, framework) as feed:
        batch = next(feed)
        value = framework.made(np.ones((8, UNITS), np.float32))
        monkeypatch.setattr(np, "copyto", counted)
        batch.save_state("h", value)
        monkeypatch.undo()
    assert copied == [framework.address(value)]


def test_a_state_that_stays_with_the_trainer_is_not_copied_at_all(
    framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences of equal length fill two lanes: no sequence begins after the first batch."""
    x = np.zeros((4 * UNROLL, 2), np.float32)
    pipeline = hs.from_examples(
        [{"key": f"e{number}", "x": x} for number in range(2)]
    ).batch_sequences_with_states(
        "key",
        ["x"],
        [],
        None,
        {"h": hs.zeros((UNITS,), "float32")},
        UNROLL,
        2,
        order="lanes",
        state_placement="trainer",
    )
    with serving(pipeline) as server, connected(server, framework) as feed:
        value = framework.made(np.arange(2 * UNITS, dtype=np.float32).reshape(2, UNITS))
        next(feed).save_state("h", value)
        for _ in range(3):
            batch = next(feed)
            assert framework.address(batch.state("h")) == framework.address(value)
            batch.save_state("h", batch.state("h"))


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


def test_what_is_saved_comes_back_whatever_form_it_had(framework: Any, way: str) -> None:
    array = np.random.default_rng(0).normal(size=(4, UNITS)).astype(np.float32)
    plain = framework.made(array)
    forms = {"plain": plain, **framework.like(plain), "numpy": array, "a_list": array.tolist()}
    feeds = in_both_placements(forms)
    with serving(feeds) as server:
        for name in feeds:
            with connected(server, framework, feed=name) as feed:
                next(feed).save_state("h", forms[name.rpartition(".")[0]])
                got = next(feed).state("h")
                assert type(got) is type(plain), name
                assert bits(got) == bits(array), name


def test_states_of_other_dtypes_come_back_as_they_were(framework: Any) -> None:
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


def test_a_variable_that_training_changes_is_kept_as_it_was_saved(tf: Any) -> None:
    framework = TensorFlow(tf)
    pipeline = lines(4, 4, order="lanes", state_placement="trainer")
    with serving(pipeline) as server, connected(server, framework) as feed:
        variable = tf.Variable(tf.ones((4, UNITS)))
        next(feed).save_state("h", variable)
        variable.assign(variable * 7)
        assert np.array_equal(next(feed).state("h").numpy(), np.ones((4, UNITS)))


def test_a_wrong_state_is_refused_at_once_and_a_right_one_is_taken_after_it(
    framework: Any,
) -> None:
    right = np.zeros((8, UNITS), np.float32)
    wrong = {
        r"got float32\[7, 16\], wanted float32\[8, 16\]": framework.made(right[:7]),
        r"got float32\[8, 15\], wanted": framework.made(right[:, :15]),
        r"got float16\[8, 16\], wanted float32": framework.made(right, "float16"),
        r"got int32\[8, 16\], wanted float32": framework.made(right, "int32"),
    }
    with serving(lines()) as server, connected(server, framework) as feed:
        batch = next(feed)
        for text, value in wrong.items():
            with pytest.raises(ValueError, match=text):
                batch.save_state("h", value)
        with pytest.raises(KeyError, match="'g' is not a state of this feed; it has"):
            batch.save_state("g", framework.made(right))
        batch.save_state("h", framework.made(right))
        with pytest.raises(headrace.StateError, match="saved already, and that stands"):
            batch.save_state("h", framework.made(right))
        assert next(feed).batch_size == 8


def test_a_symbolic_state_is_saved_by_an_operation_of_the_graph(tf: Any) -> None:
    with serving(lines()) as server, connected(server, TensorFlow(tf)) as feed:

        @tf.function
        def step(batch: Any) -> None:
            batch.save_state("h", batch.state("h") + 1)

        for batch in feed:
            assert (batch.sequence.numpy() == batch.state("h").numpy().T).all()
            step(batch)
        server.wait(PATIENCE_S)
        assert server.stats()["default"]["rows"] > 24


def test_a_traced_state_says_how_it_is_saved() -> None:
    jax = pytest.importorskip("jax")
    with serving(lines()) as server, connected(server, Jax(jax)) as feed:
        batch = next(feed)
        with pytest.raises(ValueError, match="save what the function returns"):
            jax.jit(lambda h: batch.save_state("h", h))(batch.state("h"))


def test_a_graph_saves_the_states_of_a_dataset(tf: Any) -> None:
    """A tf.function goes over the whole dataset: the sum of each row identifies its sequence."""

    def save(token: Any, h: Any) -> None:
        feed.save_states(int(token), {"h": h})

    @tf.function
    def whole(data: Any) -> Any:
        wrong, rows = tf.constant(0), tf.constant(0)
        for batch in data:
            wanted = tf.cast(batch["sequence"], tf.float32)
            wrong += tf.math.count_nonzero(batch["state"]["h"] != wanted[:, None], dtype=tf.int32)
            rows += tf.shape(wanted)[0]
            tf.py_function(save, [batch["token"], batch["state"]["h"] + 1], [])
        return wrong, rows

    with serving(lines()) as server:
        with connected(server, TensorFlow(tf), prefetch=2) as feed:
            wrong, rows = whole(feed.as_dataset())
        server.wait(PATIENCE_S)
        assert int(wrong) == 0 and int(rows) == server.stats()["default"]["rows"] > 24


def test_a_dataset_takes_no_batch_that_is_not_asked_for(tf: Any) -> None:
    """Batches that were taken ahead and dropped would keep the feed from its end."""
    with serving(lines()) as server:
        with connected(server, TensorFlow(tf), prefetch=2) as feed:
            seen = 0
            for several in (1, 2, 1, 10**6):
                data = feed.as_dataset().map(lambda batch: (batch["token"], batch["state"]["h"]))
                for token, h in data.take(several):
                    feed.save_states(token, {"h": h + 1})
                    seen += 1
        server.wait(PATIENCE_S)
        assert seen == server.stats()["default"]["batches"] > 4


# Training


Train = Callable[[Any, headrace.Feed], list[bytes]]


def _with_tf(tf: Any, feed: headrace.Feed) -> list[bytes]:
    random = np.random.default_rng(1)
    weights = [
        tf.Variable(random.normal(0, 0.3, shape).astype(np.float32))
        for shape in ((2, UNITS), (UNITS, UNITS), (UNITS, 1))
    ]

    @tf.function(reduce_retracing=True)
    def step(x: Any, mask: Any, h: Any) -> Any:
        w, u, v = weights
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for t in range(UNROLL):
                h = tf.where(mask[:, t, None], tf.tanh(x[:, t] @ w + h @ u), h)
                loss += tf.reduce_mean((h @ v - 1) ** 2)
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.05 * slope)
        return loss, h

    out = []
    for batch in feed:
        mask = tf.sequence_mask(batch.length, UNROLL)
        loss, h = step(batch.sequences["x"], mask, batch.state("h"))
        batch.save_state("h", h)
        out.append(bits(loss))
    return out + [bits(weight) for weight in weights]


def _with_torch(torch: Any, feed: headrace.Feed) -> list[bytes]:
    torch.manual_seed(1)
    cell, out = torch.nn.GRUCell(2, UNITS), torch.nn.Linear(UNITS, 1)
    weights = [*cell.parameters(), *out.parameters()]
    optimizer = torch.optim.SGD(weights, 0.05)
    told = []
    for batch in feed:
        x, h, loss = batch.sequences["x"], batch.state("h"), torch.zeros(())
        for t in range(UNROLL):
            h = torch.where((t < batch.length)[:, None], cell(x[:, t], h), h)
            loss = loss + ((out(h) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch.save_state("h", h)
        told.append(bits(loss.detach()))
    return told + [bits(weight.detach()) for weight in weights]


@functools.cache
def _jax_step() -> Any:
    import jax
    import jax.numpy as jnp

    def loss_of(weights: Any, x: Any, length: Any, h: Any) -> Any:
        w, u, v = weights

        def advance(h: Any, xt: Any) -> Any:
            x, t = xt
            h = jnp.where((t < length)[:, None], jnp.tanh(x @ w + h @ u), h)
            return h, ((h @ v - 1) ** 2).mean()

        h, losses = jax.lax.scan(advance, h, (x.swapaxes(0, 1), jnp.arange(UNROLL)))
        return losses.sum(), h

    @jax.jit
    def step(weights: Any, *batch: Any) -> Any:
        (loss, h), slope = jax.value_and_grad(loss_of, has_aux=True)(weights, *batch)
        return jax.tree.map(lambda w, s: w - 0.05 * s, weights, slope), loss, h

    return step


def _with_jax(jax: Any, feed: headrace.Feed) -> list[bytes]:
    random = np.random.default_rng(1)
    weights = [
        jax.numpy.asarray(random.normal(0, 0.3, shape), "float32")
        for shape in ((2, UNITS), (UNITS, UNITS), (UNITS, 1))
    ]
    told = []
    for batch in feed:
        inputs = batch.sequences["x"], batch.length, batch.state("h")
        weights, loss, h = _jax_step()(weights, *inputs)
        batch.save_state("h", h)
        told.append(bits(loss))
    return told + [bits(weight) for weight in weights]


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.long)])
def test_training_is_the_same_to_the_bit_wherever_the_states_are(
    framework: Any, others: bool
) -> None:
    """Batches are full except in torch: the other frameworks compile for each number of rows."""
    small = (framework.name == "torch") != others
    train: Train = {"tf": _with_tf, "torch": _with_torch, "jax": _with_jax}[framework.name]
    module = getattr(framework, framework.name)
    initial = np.linspace(-1, 1, UNITS, dtype=np.float32)
    results = {}
    for placement in ("server", "trainer"):
        pipeline = lines(
            16,
            4,
            {"h": initial},
            order="lanes",
            state_placement=placement,
            allow_small_batch=small,
        )
        with serving(pipeline) as server, connected(server, framework, prefetch=2) as feed:
            results[placement] = train(module, feed)
    assert len(results["server"]) > 12
    assert results["server"] == results["trainer"]
