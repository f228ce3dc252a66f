"""torch and JAX get the values that numpy gets, and a fork of a trainer does it no harm."""

from __future__ import annotations

import os
import select
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

from .serving import connect, serving
from .streams import NUMERIC, every_dtype, padded, values_of
from .test_tensorflow import address_of


def pipeline(n: int = 24) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).batch(4)


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).view(np.uint8).tobytes()


# Forks


def fails_in_the_child(feed: headrace.Feed) -> str:
    """Return the name of the error that a forked child gets."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        try:
            try:
                next(feed)
                text = "nothing"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            feed.close()
            os.write(write_fd, text.encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    try:
        assert select.select([read_fd], [], [], 20)[0], "the child hangs"
        text = os.read(read_fd, 65536).decode()
    finally:
        os.close(read_fd)
    os.waitpid(child, 0)
    return text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_forked_child_is_told_so_and_the_parent_goes_on(way):
    with serving(pipeline()) as server, connect(server) as feed:
        rows = next(feed)["i"].tolist()
        text = fails_in_the_child(feed)
        assert text.startswith("ForkedProcess: ")
        assert f"connected in process {os.getpid()}" in text and "DataLoader" in text
        for batch in feed:
            rows += batch["i"].tolist()
        assert sorted(rows) == list(range(24))


@pytest.mark.parametrize("framework", [pytest.param("tf", marks=pytest.mark.tf), "torch", "jax"])
def test_a_framework_gets_every_dtype_that_it_has(framework, way):
    module = pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    examples = every_dtype(8)
    with (
        serving(hs.from_examples(examples).batch(8, dynamic_pad=True)) as server,
        connect(server, framework=framework) as feed,
    ):
        batch = next(feed)
        for dtype in NUMERIC:
            want = np.stack([values_of(dtype, i) for i in range(8)])
            with np.errstate(over="ignore"):  # without x64, JAX has no 64-bit types
                tensor = got = batch[dtype]
                if framework == "jax":
                    want = want.astype(module.dtypes.canonicalize_dtype(want.dtype))
            if framework == "jax":
                got = np.asarray(tensor)
            elif framework == "tf":
                if dtype == "float32":  # of others it shows no memory
                    assert address_of(tensor) == batch.array(dtype).ctypes.data
                assert bits(module.identity(tensor)) == bits(want), dtype
            else:
                got = tensor.view(module.uint8).numpy()
                assert got.ctypes.data == batch.array(dtype).ctypes.data, dtype
            assert str(getattr(tensor.dtype, "name", tensor.dtype)).endswith(want.dtype.name)
            assert bits(got) == bits(want) and tuple(tensor.shape) == (8, 3), dtype
        for name in ("text", "texts", "words"):
            texts = batch[name].numpy().tolist() if framework == "tf" else batch[name]
            assert texts == padded(examples, name).tolist()
        for name in ("steps", "grid", "none"):
            assert np.array_equal(np.asarray(batch[name]), padded(examples, name)), name
        kept = batch["float32"]
    assert bits(np.asarray(kept)[5]) == bits(values_of("float32", 5))
