"""Server processes of contestants: ``python -m tests.bench.servers KIND DIRECTORY``.

Prints an address when it serves, and ends when its stdin does.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from . import sequences, states, workloads

RING_SLOTS = 4


def _say(line: str) -> None:
    print(line, flush=True)


def headrace_w1(directory: Path, epochs: int | None, files: int, workers: int = 1) -> None:
    import headrace_server as hs

    features = {
        "label": hs.scalar("int64"),
        "x": hs.fixed("float32", (workloads.WIDTH,)),
        "id": hs.scalar("bytes"),
    }
    source = hs.read_tfrecord(workloads.w1_files(directory)[:files], features)
    headrace_serves(source.repeat(epochs).batch(workloads.BATCH), workers=workers)


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


def ring(directory: Path) -> None:
    """The floor of W3: one memcpy per batch into shared memory, its number over ZeroMQ."""
    images = np.load(workloads.w3_file(directory), mmap_mode="r").reshape(-1)
    size = workloads.IMAGE_BYTES
    memory = shared_memory.SharedMemory(create=True, size=RING_SLOTS * size)
    address = f"ipc://{directory}/ring-{os.getpid()}"
    try:
        slots = [np.ndarray(size, np.uint8, memory.buf, i * size) for i in range(RING_SLOTS)]
        for slot in slots:
            slot[:] = 0
        with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
            pair.linger = 0
            pair.bind(address)
            _say(f"{address} {memory.name}")
            poller = zmq.Poller()
            poller.register(pair, zmq.POLLIN)
            poller.register(sys.stdin, zmq.POLLIN)
            free = list(range(RING_SLOTS))
            at = 0
            while True:
                ready = dict(poller.poll(0 if free else None))
                if sys.stdin.fileno() in ready:
                    return
                if pair in ready:
                    free.append(int(pair.recv()))
                if free:
                    slot = free.pop()
                    slots[slot][:] = images[at : at + size]
                    at = (at + size) % images.size
                    pair.send(b"%d" % slot)
    finally:
        slots.clear()
        memory.close()
        memory.unlink()


def raw_tcp(directory: Path) -> None:
    """The floor of W3 over TCP: the same batches, one after the other, down a plain socket."""
    images = np.load(workloads.w3_file(directory), mmap_mode="r").reshape(-1)
    parts = [
        images[a : a + workloads.IMAGE_BYTES] for a in range(0, images.size, workloads.IMAGE_BYTES)
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _say("{}:{}".format(*listener.getsockname()))
        peer, _ = listener.accept()
        with peer:
            try:
                while True:
                    for part in parts:
                        peer.sendall(part)
            except OSError:
                return


def zmq_echo(directory: Path) -> None:
    """The floor of a round trip: a blocking ROUTER that answers."""
    del directory
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind("tcp://127.0.0.1:*")
        _say(router.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(sys.stdin, zmq.POLLIN)
        while sys.stdin.fileno() not in dict(poller.poll()):
            router.send_multipart(router.recv_multipart())


KINDS: dict[str, Callable[[Path], None]] = {
    "headrace-w1": lambda directory: headrace_w1(directory, None, 1),
    "headrace-w1-two": lambda directory: headrace_w1(directory, None, 1, workers=2),
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
    "ring": ring,
    "raw-tcp": raw_tcp,
    "zmq-echo": zmq_echo,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
