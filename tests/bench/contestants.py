"""The contestants by name; what each of them is stands in ``steps``.

What a trainer would touch is touched in every batch: all columns, as the tensors it would use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import grain_peers, sequences, workloads
from . import torch_peers as torch
from .keras_fit import fit_steps, lightning_steps
from .processes import helper, last_line
from .state_peers import barrier
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


ONE, ALL = 1, workloads.LINKS


CONTESTANTS: dict[str, Contestant] = {
    "headrace shm tf": _headrace("headrace-w1", _w1),
    "headrace tcp tf": _headrace("headrace-w1", _w1, tcp=True),
    "headrace default settings": _headrace("headrace-w1", _w1, prefetch=None),
    "headrace fit": _headrace("headrace-w1", _w1, prefetch=None, by="fit"),
    "headrace Lightning": _headrace("headrace-w1", _w1, prefetch=None, by="lightning"),
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
    "Barrier in the graph": barrier(),
    "torch DataLoader, 2 workers": torch.loader("W1", 2, _w1),
    "torch DataLoader Lightning, 2 workers": torch.loader("W1", 2, _w1, lightning=True),
    "torch DataLoader sequences, 2 workers": torch.loader("W2", 2, _w2),
    "Grain, 2 workers": grain_peers.whole_batches("W1", _w1),
    "Grain images, 2 workers": grain_peers.whole_batches("W3", _w3),
    "Grain mixed": grain_peers.mixed(0),
    "Grain mixed, 2 workers": grain_peers.mixed(2),
    "Grain first fit": grain_peers.packed(0),
    "Grain first fit, 2 workers": grain_peers.packed(2),
}
