"""The contestants by name; what each of them is stands in ``steps``.

What a trainer would touch is touched in every batch: all columns, as the tensors it would use.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from . import grain_peers, sequences, servers, workloads
from . import torch_peers as torch
from .crowds import crowd
from .environments import EARLIER, EARLIER_COMMIT
from .keras_fit import fit_steps, lightning_steps
from .processes import helper, last_line
from .state_peers import barrier, windows
from .state_trainers import trainer
from .steps import ENDED, LOADED, READY, Check, Contestant, Filled, Steps, blind


def _w1(batch: Any, directory: Path) -> None:
    workloads.check_w1(batch)


def _w2(batch: Any, directory: Path) -> None:
    sequences.check(batch)


def _packed(batch: Any, directory: Path) -> None:
    sequences.check_packed(batch["tokens"], batch["segment_ids"], batch["positions"])


def _mixed(batch: Any, directory: Path) -> None:
    workloads.check_mixed(batch)


def _w3(batch: Any, directory: Path) -> None:
    workloads.check_w3(batch["image"], directory)


# headrace

#: Prefetch of small batches: 0.3 ms of training are less than a wake of another process.
_AHEAD = 16


def _headrace(
    kind: str,
    check: Check,
    *,
    tcp: bool = False,
    prefetch: int | None = _AHEAD,
    by: str = "loop",
    ids: str | None = None,
) -> Contestant:
    """``prefetch=None``: nothing but the framework is asked for.

    ``by``: loop; fit, which commits what it has trained; or Lightning's loop.  ``ids``: the column
    that is 0 where a batch has padding.
    """
    asked: dict[str, Any] = {} if prefetch is None else {"prefetch": prefetch}
    if by == "fit":
        asked["commit"] = "explicit"

    def steps(directory: Path) -> Steps:
        if by == "lightning":
            import torch  # noqa: F401
        else:
            import tensorflow  # noqa: F401

        import headrace

        if tcp:
            blind()
        yield LOADED
        with helper("servers", kind, str(directory)) as server:
            address = last_line(server)
            yield READY
            if by == "lightning":
                from headrace.torch import FeedDataset

                with FeedDataset(address) as rows:
                    yield from lightning_steps(rows)
            with headrace.connect(address, framework="tf", **asked) as feed:
                if feed.local is tcp:
                    raise AssertionError(f"shared memory: {feed.local}, where tcp is {tcp}")
                batches = feed if by == "loop" else feed.as_dataset()
                if by == "fit":
                    from headrace.keras import CommitTrained

                    yield from fit_steps(batches, [CommitTrained(feed)])
                names = list(feed.schema)
                checked = False
                for batch in batches:
                    for name in names:
                        batch[name]
                    if not checked:
                        checked = True
                        check(batch, directory)
                    yield Filled(sequences.filled(batch[ids])) if ids else 1
                yield ENDED

    return steps


# tf.data


def _w1_dataset(directory: Path, files: int, by_record: bool) -> Any:
    import tensorflow as tf

    spec = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([workloads.WIDTH], tf.float32),
        "id": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset(
        workloads.w1_files(directory)[:files], buffer_size=8 * 1024 * 1024
    )
    if files == 1:
        records = records.repeat()
    if by_record:
        parsed = records.map(
            lambda record: tf.io.parse_single_example(record, spec), tf.data.AUTOTUNE
        )
        return parsed.batch(workloads.BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    batched = records.batch(workloads.BATCH, drop_remainder=True)
    return batched.map(
        lambda records: tf.io.parse_example(records, spec), tf.data.AUTOTUNE
    ).prefetch(tf.data.AUTOTUNE)


def _w1_whole(directory: Path) -> Any:
    return _w1_dataset(directory, ONE, False)


def _w3_dataset(directory: Path) -> Any:
    import tensorflow as tf

    path, size = workloads.w3_file(directory), workloads.IMAGE_BYTES
    shape = (workloads.IMAGE_BATCH, *workloads.IMAGE_SHAPE)

    def batch(i: Any) -> Any:
        text = tf.strings.substr(tf.io.read_file(path), workloads.NPY_HEADER + i * size, size)
        return {"image": tf.reshape(tf.io.decode_raw(text, tf.uint8), shape)}

    return tf.data.Dataset.range(4, output_type=tf.int32).map(batch).cache().repeat()


def _tfdata(make: Callable[[Path], Any], check: Check, *, fit: bool = False) -> Contestant:
    def steps(directory: Path) -> Steps:
        import tensorflow as tf

        yield LOADED
        with helper("servers", "tfdata-service", str(directory)) as server:
            address = last_line(server)
            yield READY
            remote = tf.data.experimental.service
            dataset = (
                make(directory)
                .apply(remote.distribute(remote.ShardingPolicy.OFF, address, compression=None))
                .prefetch(tf.data.AUTOTUNE)
            )
            if fit:
                yield from fit_steps(dataset)
            checked = False
            for batch in dataset:
                for name in batch:
                    batch[name]
                if not checked:
                    checked = True
                    check(batch, directory)
                yield 1
            yield ENDED

    return steps


# Floors: what the machine itself can do


def _ring(directory: Path) -> Steps:
    yield LOADED
    with helper("servers", "ring", str(directory)) as server:
        address, name = last_line(server).split()
        memory = shared_memory.SharedMemory(name)
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
        size = workloads.IMAGE_BYTES
        slots: list[np.ndarray] = []
        shape = (workloads.IMAGE_BATCH, *workloads.IMAGE_SHAPE)
        try:
            slots += [
                np.ndarray(shape, np.uint8, memory.buf, i * size) for i in range(servers.RING_SLOTS)
            ]
            with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
                pair.linger = 0
                pair.connect(address)
                yield READY
                workloads.check_w3(slots[number := int(pair.recv())], directory)
                while True:
                    slots[number][0, 0, 0, 0]
                    yield 1
                    pair.send(b"%d" % number)
                    number = int(pair.recv())
        finally:
            slots.clear()
            memory.close()


def _raw_tcp(directory: Path) -> Steps:
    yield LOADED
    with helper("servers", "raw-tcp", str(directory)) as server:
        host, port = last_line(server).split(":")
        buffer = np.zeros((workloads.IMAGE_BATCH, *workloads.IMAGE_SHAPE), np.uint8)
        view = memoryview(buffer.reshape(-1))
        with socket.create_connection((host, int(port))) as peer:
            yield READY
            checked = False
            while True:
                got = 0
                while got < view.nbytes:
                    got += peer.recv_into(view[got:])
                if not checked:
                    checked = True
                    workloads.check_w3(buffer, directory)
                yield 1


def _zmq_echo(directory: Path) -> Steps:
    yield LOADED
    with (
        helper("servers", "zmq-echo", str(directory)) as server,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        dealer.linger = 0
        dealer.connect(last_line(server))
        yield READY
        while True:
            dealer.send(b"x" * 64)
            dealer.recv()
            yield 1


ONE, ALL = 1, workloads.LINKS


def _of_then(contestant: Contestant) -> Contestant:
    """The same, where the packages of an earlier commit are found first."""

    def steps(directory: Path) -> Steps:
        import headrace

        if EARLIER_COMMIT not in headrace.__file__:
            raise AssertionError(f"{headrace.__file__} is not of {EARLIER_COMMIT}")
        yield from contestant(directory)

    return steps


CONTESTANTS: dict[str, Contestant] = {
    "headrace shm tf": _headrace("headrace-w1", _w1),
    "headrace tcp tf": _headrace("headrace-w1", _w1, tcp=True),
    "headrace default settings": _headrace("headrace-w1", _w1, prefetch=None),
    "headrace fit": _headrace("headrace-w1", _w1, prefetch=None, by="fit"),
    "headrace Lightning": _headrace("headrace-w1", _w1, prefetch=None, by="lightning"),
    "headrace, 1 trainer": crowd(1),
    "headrace, 8 trainers": crowd(8),
    "headrace first epoch": _headrace("headrace-w1-once", _w1),
    "headrace from Arrow": _headrace("headrace-w1-arrow", _w1),
    "headrace from Parquet": _headrace("headrace-w1-parquet", _w1),
    "headrace sequences": _headrace("headrace-w2", _w2, prefetch=8),
    "headrace sequences tcp": _headrace("headrace-w2", _w2, prefetch=8, tcp=True),
    "headrace sequences from Arrow": _headrace("headrace-w2-arrow", _w2, prefetch=8),
    "headrace mixed": _headrace("headrace-w1-mixed", _mixed),
    "headrace packed": _headrace("headrace-w2-packed", _packed, prefetch=8, ids="segment_ids"),
    "headrace images shm": _headrace("headrace-w3", _w3, prefetch=2),
    "headrace images tcp": _headrace("headrace-w3", _w3, prefetch=2, tcp=True),
    "tf.data service": _tfdata(_w1_whole, _w1),
    "tf.data service by record": _tfdata(lambda d: _w1_dataset(d, ONE, True), _w1),
    "tf.data service fit": _tfdata(_w1_whole, _w1, fit=True),
    "tf.data service first epoch": _tfdata(lambda d: _w1_dataset(d, ALL, False), _w1),
    "tf.data service sequences": _tfdata(sequences.dataset, _w2),
    "tf.data service images": _tfdata(_w3_dataset, _w3),
    "headrace arrival": trainer(False),
    "headrace arrival, two in flight": trainer(False, prefetch=1),
    "headrace arrival, durable": trainer(False, durability="power"),
    "headrace arrival, durable, two in flight": trainer(False, prefetch=1, durability="power"),
    "headrace arrival, durable, process": trainer(False, durability="process"),
    "headrace lanes": trainer(True, prefetch=2),
    "headrace lanes, prefetch 8": trainer(True, prefetch=8),
    "headrace arrival tcp": trainer(False, tcp=True),
    "headrace arrival tcp, two in flight": trainer(False, prefetch=1, tcp=True),
    "headrace lanes tcp": trainer(True, prefetch=2, tcp=True),
    "headrace save to ready": trainer(False, to_ready=True),
    "Barrier in the graph": barrier(),
    "tf.data windows": windows,
    "torch DataLoader, 2 workers": torch.loader("W1", 2, _w1),
    "torch DataLoader Lightning, 2 workers": torch.loader("W1", 2, _w1, lightning=True),
    "torch DataLoader sequences, 2 workers": torch.loader("W2", 2, _w2),
    "Grain, 2 workers": grain_peers.whole_batches("W1", _w1),
    "Grain images, 2 workers": grain_peers.whole_batches("W3", _w3),
    "Grain mixed": grain_peers.mixed(0),
    "Grain mixed, 2 workers": grain_peers.mixed(2),
    "Grain first fit": grain_peers.packed(0),
    "Grain first fit, 2 workers": grain_peers.packed(2),
    "shared-memory ring": _ring,
    "raw TCP": _raw_tcp,
    "ZeroMQ round trip": _zmq_echo,
}
#: The same code beside packages of an earlier commit (``environments``).
CONTESTANTS |= {
    f"{EARLIER} {name}": _of_then(contestant)
    for name, contestant in CONTESTANTS.items()
    if name.startswith("headrace")
}
