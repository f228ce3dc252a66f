"""Server processes of contestants: ``python -m tests.bench.servers KIND DIRECTORY``.

Prints an address when it serves, and ends when its stdin does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import sequences, states, workloads


def _say(line: str) -> None:
    print(line, flush=True)


def headrace_w1(directory: Path, epochs: int | None, files: int) -> None:
    import headrace_server as hs

    features = {
        "label": hs.scalar("int64"),
        "x": hs.fixed("float32", (workloads.WIDTH,)),
        "id": hs.scalar("bytes"),
    }
    source = hs.read_tfrecord(workloads.w1_files(directory)[:files], features)
    headrace_serves(source.repeat(epochs).batch(workloads.BATCH))


def headrace_w1_columns(directory: Path, parquet: bool) -> None:
    import headrace_server as hs

    read = hs.read_parquet if parquet else hs.read_arrow
    headrace_serves(
        read(workloads.columns_file(directory, parquet)).repeat().batch(workloads.BATCH)
    )


def headrace_w1_mixed(directory: Path) -> None:
    import headrace_server as hs

    rows = hs.read_arrow(workloads.columns_file(directory, False)).repeat()
    first, second = workloads.MIX
    mixed = hs.mix({"a": rows, "b": rows}, {"a": first, "b": second})
    headrace_serves(mixed.batch(workloads.BATCH))


def headrace_w4_durable(directory: Path, durability: str) -> None:
    """On the disk that the data lies on."""
    with tempfile.TemporaryDirectory(prefix="state-", dir=directory) as state:
        headrace_serves(states.pipeline(directory, False), state_dir=state, durability=durability)


def headrace_w3(directory: Path) -> None:
    import headrace_server as hs

    source = hs.read_npz(workloads.w3_file(directory))
    headrace_serves(source.repeat().batch(workloads.IMAGE_BATCH))


def headrace_serves(pipeline: Any, **options: Any) -> None:
    import headrace_server as hs

    # Between windows all processes are stopped, which must not count as a fault.
    patience = {"lease_ttl_s": 3600.0, "worker_timeout_s": 3600.0}
    with hs.run(pipeline, **patience, **options) as server:
        _say(server.address)
        sys.stdin.read()


def tfdata_service(directory: Path) -> None:
    """A dispatcher and a worker, as one process."""
    del directory
    import tensorflow as tf

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    worker = service.WorkerServer(
        service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
    )
    _say(dispatcher.target)
    sys.stdin.read()
    del worker


KINDS: dict[str, Callable[[Path], None]] = {
    "headrace-w1": lambda directory: headrace_w1(directory, None, 1),
    "headrace-w1-once": lambda directory: headrace_w1(directory, 1, workloads.LINKS),
    "headrace-w1-arrow": lambda directory: headrace_w1_columns(directory, False),
    "headrace-w1-parquet": lambda directory: headrace_w1_columns(directory, True),
    "headrace-w1-mixed": headrace_w1_mixed,
    "headrace-w2": lambda directory: headrace_serves(sequences.pipeline(directory, False)),
    "headrace-w2-arrow": lambda directory: headrace_serves(sequences.pipeline(directory, True)),
    "headrace-w2-packed": lambda directory: headrace_serves(sequences.packed(directory)),
    "headrace-w3": headrace_w3,
    "headrace-w4-arrival": lambda directory: headrace_serves(states.pipeline(directory, False)),
    "headrace-w4-power": lambda directory: headrace_w4_durable(directory, "power"),
    "headrace-w4-process": lambda directory: headrace_w4_durable(directory, "process"),
    "headrace-w4-lanes": lambda directory: headrace_serves(states.pipeline(directory, True)),
    "tfdata-service": tfdata_service,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
