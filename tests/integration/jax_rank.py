"""One of several processes of JAX that train as one.

    python jax_rank.py ADDRESS FEED COORDINATOR RANK COUNT

Prints a JSON line for each step: the sum of its own rows, and that of the rows of all.
"""

from __future__ import annotations

import json
import sys

import jax
from jax.sharding import NamedSharding, PartitionSpec

import headrace
from headrace.jax import global_arrays, local_rows


def main() -> None:
    address, name, coordinator, rank, count = sys.argv[1:]
    jax.distributed.initialize(coordinator, int(count), int(rank))
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(lambda batch: (batch["x"].sum(), 2 * batch["x"]))
    with headrace.connect(
        address,
        feed=name,
        rank=jax.process_index(),
        world_size=jax.process_count(),
        timeout=240,
    ) as feed:
        for batch in feed:
            arrays = global_arrays(batch, rows)
            assert list(arrays) == ["x"]  # and no strings
            total, doubled = step(arrays)
            own = local_rows(doubled)
            assert (own == 2 * batch["x"]).all()
            line = {"own": float(own.sum()) / 2, "all": float(total), "rows": len(doubled)}
            print(json.dumps(line), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
