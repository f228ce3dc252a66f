"""W2: sequences into buckets of like length, padded; and tokens of the same lengths, packed.

20,000 records: x float32 [T, 64] with T uniform in 20 … 400, length int64, key of 10 bytes (1.07
GB); the same rows as an Arrow IPC file.  What a row holds follows from its key, so any batch can be
checked: row i is a window of one pool of numbers, from row i of the pool on.  The tokens of example
i, int32, count from i.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import records

RECORDS = 20_000
BATCH = 32
WIDTH = 64
SHORTEST, LONGEST = 20, 400
BOUNDARIES = [80, 160, 240, 320]
#: Rows of a packed batch, and steps of each.
PACKED_ROWS, PACKED_STEPS = 8, 2048
#: Average bytes of a batch's examples: x, length, key.
NBYTES = BATCH * ((SHORTEST + LONGEST) / 2 * WIDTH * 4 + 8 + 10)


def lengths() -> np.ndarray:
    return np.random.default_rng(4).integers(SHORTEST, LONGEST + 1, RECORDS)


def pool() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((RECORDS + LONGEST, WIDTH), np.float32)


def key(row: int) -> bytes:
    return b"s%09d" % row


def tfrecord_file(directory: Path) -> str:
    return str(directory / "w2.tfrecord")


def arrow_file(directory: Path) -> str:
    return str(directory / "w2.arrow")


def tokens_file(directory: Path) -> str:
    return str(directory / "w2-tokens.arrow")


def prepare(directory: Path) -> None:
    """Make the files unless they are there."""
    if not Path(tokens_file(directory)).exists():
        _write_tokens(directory)
    if Path(tfrecord_file(directory)).exists() and Path(arrow_file(directory)).exists():
        return
    steps, numbers = lengths().tolist(), pool()
    if not Path(tfrecord_file(directory)).exists():
        messages = (
            records.example({"key": key(i), "length": t, "x": numbers[i : i + t]})
            for i, t in enumerate(steps)
        )
        records.write(Path(tfrecord_file(directory)), messages)
    if not Path(arrow_file(directory)).exists():
        _write_arrow(directory, steps, numbers)


def _write_arrow(directory: Path, steps: list[int], numbers: np.ndarray) -> None:
    import pyarrow as pa

    step = pa.list_(pa.float32(), WIDTH)
    schema = pa.schema([("key", pa.binary()), ("length", pa.int64()), ("x", pa.list_(step))])
    unfinished = Path(arrow_file(directory) + ".part")
    with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, RECORDS, 1000):
            rows = range(start, min(start + 1000, RECORDS))
            values = np.concatenate([numbers[i : i + steps[i]] for i in rows]).reshape(-1)
            offsets = np.cumsum([0, *(steps[i] for i in rows)], dtype=np.int32)
            windows = pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)
            columns = [
                pa.array([key(i) for i in rows], pa.binary()),
                pa.array([steps[i] for i in rows], pa.int64()),
                pa.ListArray.from_arrays(pa.array(offsets), windows),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    unfinished.rename(arrow_file(directory))


def _write_tokens(directory: Path) -> None:
    import pyarrow as pa

    tokens = pa.array([np.arange(i, i + t, dtype=np.int32) for i, t in enumerate(lengths())])
    table = pa.table({"tokens": tokens})
    unfinished = Path(tokens_file(directory) + ".part")
    with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    unfinished.rename(tokens_file(directory))


def packed(directory: Path) -> Any:
    """headrace's rows of tokens."""
    import headrace_server as hs

    source = hs.read_arrow(tokens_file(directory)).repeat()
    return source.pack(PACKED_STEPS, PACKED_ROWS, strategy="best_fit")


def pipeline(directory: Path, arrow: bool) -> Any:
    """headrace's."""
    import headrace_server as hs

    features = {
        "key": hs.scalar("bytes"),
        "length": hs.scalar("int64"),
        "x": hs.sequence("float32", (WIDTH,)),
    }
    source = (
        hs.read_arrow(arrow_file(directory))
        if arrow
        else hs.read_tfrecord(tfrecord_file(directory), features)
    )
    return source.repeat().bucket_by_sequence_length("length", BATCH, BOUNDARIES, dynamic_pad=True)


def dataset(directory: Path) -> Any:
    """tf.data's: lengths are parsed first, batches of whole records when their bucket is full."""
    import tensorflow as tf

    length = {"length": tf.io.FixedLenFeature([], tf.int64)}
    whole = {
        **length,
        "key": tf.io.FixedLenFeature([], tf.string),
        "x": tf.io.FixedLenSequenceFeature([WIDTH], tf.float32, allow_missing=True),
    }
    source = tf.data.TFRecordDataset(tfrecord_file(directory), buffer_size=8 * 1024 * 1024).repeat()
    sizes = [BATCH] * (len(BOUNDARIES) + 1)
    return (
        source.batch(BATCH)
        .map(lambda r: (r, tf.io.parse_example(r, length)["length"]), tf.data.AUTOTUNE)
        .unbatch()
        .bucket_by_sequence_length(lambda _, steps: tf.cast(steps, tf.int32), BOUNDARIES, sizes)
        .map(lambda r, _: tf.io.parse_example(r, whole), tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def check(batch: Any) -> None:
    """Every row must be the one that its key names, padded with zeros, in one bucket."""
    numbers, steps = pool(), lengths()
    rows = [int(bytes(name)[1:]) for name in np.asarray(batch["key"]).tolist()]
    expected = np.zeros((BATCH, int(steps[rows].max()), WIDTH), np.float32)
    for place, row in enumerate(rows):
        expected[place, : steps[row]] = numbers[row : row + steps[row]]
    if not np.array_equal(np.asarray(batch["length"]), steps[rows]):
        raise AssertionError("the lengths of a batch are not those of its keys")
    if not np.array_equal(np.asarray(batch["x"]), expected):
        raise AssertionError("the sequences of a batch are not those of its keys, padded")
    if len(set(np.searchsorted(BOUNDARIES, steps[rows], side="right").tolist())) != 1:
        raise AssertionError(f"a batch mixes buckets: its lengths are {steps[rows].tolist()}")


def check_packed(tokens: Any, ids: Any, positions: Any) -> None:
    """Every example of a row must be a whole one."""
    steps = lengths()
    for row, numbers, places in zip(*map(np.asarray, (tokens, ids, positions)), strict=True):
        for number in range(1, numbers.max() + 1):
            example = row[numbers == number]
            if len(example) != steps[example[0]]:
                raise AssertionError(f"{len(example)} steps of example {example[0]}")
            if not np.array_equal(example, example[0] + places[numbers == number]):
                raise AssertionError(f"the steps of example {example[0]} are not in their places")
        if row[numbers == 0].any():
            raise AssertionError("padding is not zero")


def filled(ids: Any) -> float:
    """Return the share of a packed batch that is not padding."""
    numbers = np.asarray(ids)
    return float(np.count_nonzero(numbers) / numbers.size)
