"""JAX in several processes: each has the batches of its rank, and all compute with one array.

How batches become arrays of JAX in one process is in test_frameworks.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.nursery import warm_run
from tests.ports import free_port

from .segment_streams import at_once
from .serving import serving

PROGRAM = Path(__file__).with_name("jax_rank.py")


@pytest.mark.slow
def test_two_processes_see_the_rows_of_both():
    pytest.importorskip("jax")
    rows = [{"x": np.full(3, i, np.float32), "name": b"%d" % i} for i in range(48)]
    # Two devices each, as a host of several accelerators has.
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    with serving({"rows": hs.from_examples(rows).batch(4)}) as server:
        coordinator = f"127.0.0.1:{free_port()}"

        def ranked(rank: int) -> list[dict[str, Any]]:
            words = PROGRAM, server.address, "rows", coordinator, str(rank), "2"
            done = warm_run(*words, imports=["jax"], **flags)
            assert done.returncode == 0, done.stderr[-2000:]
            return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

        one, other = at_once([lambda: ranked(0), lambda: ranked(1)])
    assert len(one) == len(other) == 6
    for mine, theirs in zip(one, other, strict=True):
        assert mine["all"] == theirs["all"] == mine["own"] + theirs["own"]
        assert mine["rows"] == theirs["rows"] == 8
    assert sum(step["all"] for step in one) == 3 * sum(range(48))


def test_one_process_has_its_own_rows_and_strings_stay_out():
    jax: Any = pytest.importorskip("jax")
    from jax.sharding import NamedSharding, PartitionSpec

    from headrace.jax import global_arrays, local_rows

    mesh = jax.make_mesh((1,), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    names = np.array([b"a", b"b", b"c", b"d"], object)
    values = {"x": x, "names": names, "list": [b"a"] * 4, "states": {"h": x[:, 0]}, "pair": (x, x)}
    joined = global_arrays(values, rows)
    assert list(joined) == ["x", "states", "pair"] and joined["states"]["h"].shape == (4,)
    assert isinstance(joined["pair"], tuple) and isinstance(joined["x"], jax.Array)
    assert (local_rows(joined["x"]) == x).all()
    assert (local_rows(global_arrays(x, rows)) == x).all()


def test_rows_that_are_divided_further_are_refused():
    pytest.importorskip("jax")
    from types import SimpleNamespace

    from headrace.jax import local_rows

    shard = SimpleNamespace(data=np.zeros((4, 3)), index=(slice(None), slice(0, 3)))
    with pytest.raises(ValueError, match=r"\(4, 6\) is divided into \(4, 3\); shard it along"):
        local_rows(SimpleNamespace(shape=(4, 6), addressable_shards=[shard]))
