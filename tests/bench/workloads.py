"""The data: made once, the same for every contestant, and checked in every contestant's hands.

Here W1 and W3; W2 stands in ``sequences``.

W1   TFRecord of tf.train.Example, 200,000 records: label int64 0 … 999, x float32[64], id 10 bytes;
     the same rows as Arrow IPC and as Parquet
W3   images ready in memory: uint8 [512, 224, 224, 3], four batches of 128 (19 MB each)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from . import sequences

RECORDS = 200_000
BATCH = 256
WIDTH = 64
#: Weights of two sources of these records.
MIX = (0.7, 0.3)
#: Bytes of a batch's examples: label, x, id.
NBYTES = BATCH * (8 + 4 * WIDTH + 10)
#: Names of the one W1 file, so that a first pass lasts long enough to be timed.
LINKS = 8

IMAGES = 512
IMAGE_BATCH = 128
IMAGE_SHAPE = (224, 224, 3)
IMAGE_BYTES = IMAGE_BATCH * int(np.prod(IMAGE_SHAPE))
NPY_HEADER = 128

#: A record batch of Arrow, a row group of Parquet.
_ROWS_TOGETHER = 20_000

_VERSION = 1


def w1_columns(n: int = RECORDS) -> dict[str, np.ndarray]:
    """Return the content of the first records."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 1000, RECORDS)[:n]
    x = np.random.default_rng(2).standard_normal((n, WIDTH), np.float32)
    ids = np.array([b"id%08d" % i for i in range(n)], object)
    return {"label": labels, "x": x, "id": ids}


def w1_files(directory: Path) -> list[str]:
    """The links to the one file, all of the same records."""
    return [str(directory / f"w1-{i}.tfrecord") for i in range(LINKS)]


def columns_file(directory: Path, parquet: bool) -> str:
    return str(directory / ("w1.parquet" if parquet else "w1.arrow"))


def w3_file(directory: Path) -> str:
    return str(directory / "image.npy")


def prepare(directory: Path) -> None:
    """Make all data unless it is there.  Loads TensorFlow: call it in a process of its own."""
    _prepare_own(directory)
    prepare_columns(directory)
    sequences.prepare(directory)


def _prepare_own(directory: Path) -> None:
    done = directory / f"done-{_VERSION}"
    if done.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.iterdir():
        if stale.is_file():
            stale.unlink()
    import tensorflow as tf

    columns = w1_columns()
    first, *others = w1_files(directory)
    with tf.io.TFRecordWriter(first) as writer:
        for label, x, name in zip(columns["label"], columns["x"], columns["id"], strict=True):
            example = tf.train.Example()
            example.features.feature["label"].int64_list.value.append(int(label))
            example.features.feature["x"].float_list.value.extend(x.tolist())
            example.features.feature["id"].bytes_list.value.append(name)
            writer.write(example.SerializeToString())
    for other in others:
        os.link(first, other)
    images = np.random.default_rng(3).integers(0, 256, (IMAGES, *IMAGE_SHAPE), np.uint8)
    np.save(w3_file(directory), images)
    done.touch()


def prepare_columns(directory: Path) -> None:
    if all(Path(columns_file(directory, parquet)).exists() for parquet in (False, True)):
        return
    import pyarrow as pa
    import pyarrow.parquet

    columns = w1_columns()
    x = pa.FixedSizeListArray.from_arrays(pa.array(columns["x"].reshape(-1)), WIDTH)
    ids = pa.array(columns["id"], pa.binary())
    rows = pa.table({"label": pa.array(columns["label"]), "x": x, "id": ids})
    arrow, parquet = columns_file(directory, False), columns_file(directory, True)
    with pa.OSFile(arrow + ".part", "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=_ROWS_TOGETHER)
    os.rename(arrow + ".part", arrow)
    pyarrow.parquet.write_table(rows, parquet + ".part", row_group_size=_ROWS_TOGETHER)
    os.rename(parquet + ".part", parquet)


def check_w1(batch: Any) -> None:
    """A first batch must hold the first records, in every framework."""
    expected = w1_columns(BATCH)
    for name, values in expected.items():
        if not np.array_equal(np.asarray(batch[name]), values):
            raise AssertionError(f"column {name!r} of the first batch is not what the file holds")


def check_mixed(batch: Any) -> None:
    """A first batch must hold the first rows of two sources, some 0.7 of them of the first."""
    rows = [int(bytes(name)[2:]) for name in np.asarray(batch["id"]).tolist()]
    columns, of_first = w1_columns(), max(rows) + 1
    if sorted(rows) != sorted([*range(of_first), *range(len(rows) - of_first)]):
        raise AssertionError(f"not the first rows of two sources: {rows}")
    if abs(of_first / len(rows) - MIX[0]) > 0.15:
        raise AssertionError(f"{of_first} of {len(rows)} rows are of the first source")
    for name in ("label", "x"):
        if not np.array_equal(np.asarray(batch[name]), columns[name][rows]):
            raise AssertionError(f"column {name!r} of the first batch is not what the files hold")


def check_w3(images: Any, directory: Path) -> None:
    """A batch must be one of the four of the file."""
    stored = np.load(w3_file(directory), mmap_mode="r")
    got = np.asarray(images)
    if not any(
        np.array_equal(got, stored[at : at + IMAGE_BATCH]) for at in range(0, IMAGES, IMAGE_BATCH)
    ):
        raise AssertionError("a batch of images is not what the file holds")
