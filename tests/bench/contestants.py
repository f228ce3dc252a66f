"""The contestants by name; what each of them is stands in ``steps``.

What a trainer would touch is touched in every batch: all columns, as the tensors it would use.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from . import grain_peers, reverb_peers, sequences, servers, skewed, tensorpack_peers, workloads
from . import torch_peers as torch
from .crowds import crowd
from .environments import EARLIER, EARLIER_COMMIT
from .keras_fit import fit_steps
from .processes import helper, last_line
from .state_peers import barrier, windows
from .state_trainers import trainer
from .steps import ENDED, LOADED, READY, Check, Contestant, Steps, blind


def _w1(batch: Any, directory: Path) -> None:
    workloads.check_w1(batch)


def _w2(batch: Any, directory: Path) -> None:
    sequences.check(batch)


def _w3(batch: Any, directory: Path) -> None:
    workloads.check_w3(batch["image"], directory)


def _mixed(batch: Any, directory: Path) -> None:
    skewed.check(batch)
    skewed.check_mix(batch)


def _estimated(batch: Any, directory: Path) -> None:
    skewed.check(batch)  # the mix comes with the estimate, later


# headrace

#: Prefetch of small batches: 0.3 ms of training are less than a wake of another process.
_AHEAD = 16


def _headrace(
    kind: str,
    framework: str,
    check: Check,
    *,
    tcp: bool = False,
    prefetch: int | None = _AHEAD,
    by: str = "loop",
) -> Contestant:
    """``prefetch=None``: nothing but the framework is asked for.

    ``by``: loop, dataset, fit, or graph, where TensorFlow pulls the batches of the dataset.
    """
    asked: dict[str, Any] = {} if prefetch is None else {"prefetch": prefetch}

    def steps(directory: Path) -> Steps:
        import headrace

        if framework == "tf":
            import tensorflow  # noqa: F401
        if tcp:
            blind()
        yield LOADED
        with helper("servers", kind, str(directory)) as server:
            address = last_line(server)
            yield READY
            with headrace.connect(address, framework=framework, **asked) as feed:
                if feed.local is tcp:
                    raise AssertionError(f"shared memory: {feed.local}, where tcp is {tcp}")
                batches = feed if by == "loop" else feed.as_dataset()
                if by == "fit":
                    yield from fit_steps(batches)
                if by == "graph":
                    batches = batches.map(lambda batch: batch)
                names = list(feed.schema)
                checked = False
                for batch in batches:
                    for name in names:
                        batch[name]
                    if not checked:
                        checked = True
                        check(batch, directory)
                    yield 1
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


def _tfdata(
    make: Callable[[Path], Any], check: Check, *, service: bool, fit: bool = False
) -> Contestant:
    def steps(directory: Path) -> Steps:
        import tensorflow as tf

        yield LOADED
        with contextlib.ExitStack() as stack:
            address = None
            if service:
                server = stack.enter_context(helper("servers", "tfdata-service", str(directory)))
                address = last_line(server)
            yield READY
            dataset = make(directory)
            if address is not None:
                remote = tf.data.experimental.service
                dataset = dataset.apply(
                    remote.distribute(remote.ShardingPolicy.OFF, address, compression=None)
                ).prefetch(tf.data.AUTOTUNE)
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


def _both_ways(name: str, make: Callable[[Path], Any], check: Check) -> dict[str, Contestant]:
    """A dataset in the trainer's process, and the same in the service."""
    return {
        f"tf.data in process {name}".rstrip(): _tfdata(make, check, service=False),
        f"tf.data service {name}".rstrip(): _tfdata(make, check, service=True),
    }


_WORKLOADS = {"W1": ("", _w1), "W2": (" sequences", _w2), "W3": (" images", _w3)}


def _workers(name: str, make: Callable[[str, int, Check], Contestant]) -> dict[str, Contestant]:
    """A peer with one and with two worker processes, on W1, W2 and W3."""
    return {
        f"{name}{data}, {number} worker{'s' * (number > 1)}": make(workload, number, check)
        for workload, (data, check) in _WORKLOADS.items()
        for number in (1, 2)
    }


def _of_then(contestant: Contestant) -> Contestant:
    """The same, where the packages of an earlier commit are found first."""

    def steps(directory: Path) -> Steps:
        import headrace

        if EARLIER_COMMIT not in headrace.__file__:
            raise AssertionError(f"{headrace.__file__} is not of {EARLIER_COMMIT}")
        yield from contestant(directory)

    return steps


CONTESTANTS: dict[str, Contestant] = {
    "headrace shm tf": _headrace("headrace-w1", "tf", _w1),
    "headrace shm numpy": _headrace("headrace-w1", "numpy", _w1),
    "headrace tcp tf": _headrace("headrace-w1", "tf", _w1, tcp=True),
    "headrace default settings": _headrace("headrace-w1", "tf", _w1, prefetch=None),
    "headrace as_dataset": _headrace("headrace-w1", "tf", _w1, prefetch=None, by="dataset"),
    "headrace graph": _headrace("headrace-w1", "tf", _w1, prefetch=None, by="graph"),
    "headrace fit": _headrace("headrace-w1", "tf", _w1, prefetch=None, by="fit"),
    **{
        f"headrace {by}, prefetch {n}": _headrace("headrace-w1", "tf", _w1, prefetch=n, by=by)
        for by in ("loop", "graph", "fit")
        for n in workloads.BY_HAND
    },
    "headrace, 1 trainer": crowd(1),
    "headrace, 8 trainers": crowd(8),
    "headrace first epoch": _headrace("headrace-w1-once", "tf", _w1),
    "headrace one at a time": _headrace("headrace-w1", "numpy", _w1, prefetch=0),
    "headrace from Arrow": _headrace("headrace-w1-arrow", "tf", _w1),
    "headrace from Parquet": _headrace("headrace-w1-parquet", "tf", _w1),
    "headrace sequences": _headrace("headrace-w2", "tf", _w2, prefetch=8),
    "headrace sequences tcp": _headrace("headrace-w2", "tf", _w2, prefetch=8, tcp=True),
    "headrace sequences from Arrow": _headrace("headrace-w2-arrow", "tf", _w2, prefetch=8),
    "headrace images shm": _headrace("headrace-w3", "tf", _w3, prefetch=2),
    "headrace images tcp": _headrace("headrace-w3", "tf", _w3, prefetch=2, tcp=True),
    "headrace stratified, known": _headrace("headrace-known", "tf", _mixed),
    "headrace stratified, estimated": _headrace("headrace-estimated", "tf", _estimated),
    "headrace rejection": _headrace("headrace-rejection", "tf", _mixed),
    **_both_ways("", lambda d: _w1_dataset(d, ONE, False), _w1),
    **_both_ways("by record", lambda d: _w1_dataset(d, ONE, True), _w1),
    "tf.data in process fit": _tfdata(_w1_whole, _w1, service=False, fit=True),
    "tf.data service fit": _tfdata(_w1_whole, _w1, service=True, fit=True),
    "tf.data service first epoch": _tfdata(lambda d: _w1_dataset(d, ALL, False), _w1, service=True),
    **_both_ways("sequences", lambda d: sequences.dataset(d, False), _w2),
    **_both_ways("sequences by record", lambda d: sequences.dataset(d, True), _w2),
    "tf.data service images": _tfdata(_w3_dataset, _w3, service=True),
    **_both_ways("resample, known", lambda d: skewed.dataset(d, True), _mixed),
    **_both_ways("resample, estimated", lambda d: skewed.dataset(d, False), _estimated),
    **_both_ways("mask by hand", skewed.dataset_by_hand, _mixed),
    "headrace arrival": trainer(False),
    "headrace arrival, two in flight": trainer(False, prefetch=1),
    "headrace arrival, three in flight": trainer(False, prefetch=1, ahead=True),
    "headrace arrival, durable": trainer(False, durability="power"),
    "headrace arrival, durable, two in flight": trainer(False, prefetch=1, durability="power"),
    "headrace arrival, durable, process": trainer(False, durability="process"),
    "headrace lanes": trainer(True, prefetch=2),
    "headrace lanes, prefetch 8": trainer(True, prefetch=8),
    "headrace arrival numpy": trainer(False, "numpy"),
    "headrace arrival numpy, two in flight": trainer(False, "numpy", prefetch=1),
    "headrace lanes numpy": trainer(True, "numpy", prefetch=2),
    "headrace arrival tcp": trainer(False, tcp=True),
    "headrace arrival tcp, two in flight": trainer(False, prefetch=1, tcp=True),
    "headrace lanes tcp": trainer(True, prefetch=2, tcp=True),
    "headrace save to ready, arrival": trainer(False, to_ready=True),
    "headrace save to ready, lanes": trainer(True, to_ready=True),
    "Barrier in the graph": barrier(),
    "Barrier in the graph, one state": barrier(("a",)),
    "tf.data windows": windows,
    **_workers("torch DataLoader", torch.loader),
    **_workers("Grain", grain_peers.workers),
    **_workers("tensorpack", tensorpack_peers.runner),
    "Reverb, states inserted": reverb_peers.segments,
    "Reverb images": reverb_peers.images(_w3),
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
