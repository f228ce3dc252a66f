"""Sampling: ten classes from a skewed source, delivered in equal parts.

200,000 records as in W1: label int64 0 … 9, x float32 [64], id of 10 bytes, and accept float32, the
probability with which rejection sampling keeps the row's class.  The rarest class makes up 2 % and
shall make up 10 %, so five rows are read for each that is delivered, whoever samples best.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import records

RECORDS = 200_000
BATCH = 256
WIDTH = 64
SHARES = [0.28, 0.20, 0.14, 0.10, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02]
#: Bytes of a batch's examples: accept, id, label, x.
NBYTES = BATCH * (4 + 10 + 8 + 4 * WIDTH)
TARGET = [0.1] * len(SHARES)
ACCEPT = [min(SHARES) / share for share in SHARES]
#: Rows read for a row delivered.
READ = 1 / sum(a * share for a, share in zip(ACCEPT, SHARES, strict=True))


def labels() -> np.ndarray:
    return np.random.default_rng(6).choice(len(SHARES), RECORDS, p=SHARES)


def numbers() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((RECORDS, WIDTH), np.float32)


def file(directory: Path) -> str:
    return str(directory / "skewed.tfrecord")


def prepare(directory: Path) -> None:
    """Make the file unless it is there."""
    if Path(file(directory)).exists():
        return
    x = numbers()
    accept = np.array(ACCEPT, np.float32)
    messages = (
        records.example({"accept": accept[c : c + 1], "id": b"id%08d" % i, "label": c, "x": x[i]})
        for i, c in enumerate(labels().tolist())
    )
    records.write(Path(file(directory)), messages)


def pipeline(directory: Path) -> Any:
    """headrace's."""
    import headrace_server as hs

    features = {
        "accept": hs.scalar("float32"),
        "id": hs.scalar("bytes"),
        "label": hs.scalar("int64"),
        "x": hs.fixed("float32", (WIDTH,)),
    }
    source = hs.read_tfrecord(file(directory), features).repeat()
    return source.rejection_sample("accept", BATCH)


def _whole() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "accept": tf.io.FixedLenFeature([], tf.float32),
        "id": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([WIDTH], tf.float32),
    }


def dataset(directory: Path) -> Any:
    """tf.data's without its sampler: a mask over the labels of many records at once.

    What one who knows the shares would write for speed.
    """
    import tensorflow as tf

    accept = tf.constant(ACCEPT, tf.float32)
    label = {"label": tf.io.FixedLenFeature([], tf.int64)}

    def sampled(raw: Any) -> Any:
        chance = tf.gather(accept, tf.io.parse_example(raw, label)["label"])
        return tf.boolean_mask(raw, tf.random.uniform(tf.shape(chance)) < chance)

    source = tf.data.TFRecordDataset(file(directory), buffer_size=8 * 1024 * 1024).repeat()
    return (
        source.batch(4 * BATCH)
        .map(sampled, tf.data.AUTOTUNE)
        .rebatch(BATCH, drop_remainder=True)
        .map(lambda r: tf.io.parse_example(r, _whole()), tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def check(batch: Any) -> None:
    """Every row must be the one that its id names."""
    rows = [int(bytes(name)[2:]) for name in np.asarray(batch["id"]).tolist()]
    if not np.array_equal(np.asarray(batch["label"]), labels()[rows]):
        raise AssertionError("the labels of a batch are not those of its ids")
    if not np.array_equal(np.asarray(batch["x"]), numbers()[rows]):
        raise AssertionError("the numbers of a batch are not those of its ids")


def check_mix(batch: Any) -> None:
    """The classes of a batch must come in equal parts, within the error of sampling."""
    classes = np.asarray(batch["label"])
    shares = np.bincount(classes, minlength=len(TARGET)) / len(classes)
    wanted = np.array(TARGET)
    # Six standard deviations: the source itself, with 28 % of the first class, is nine away.
    error = 6 * np.sqrt(wanted * (1 - wanted) / len(classes))
    if (np.abs(shares - wanted) > error).any():
        raise AssertionError(f"classes come in the shares {shares.round(3).tolist()}, not {TARGET}")
