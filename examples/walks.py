"""The demo's data and its feed: random walks, and whether each ends above where it began.

    python examples/walks.py                       writes demo-data/walks-*.tfrecord
    headrace serve examples/walks.py:walks         serves them

The label is the sign of the sum over all steps, so a model has to take in the whole sequence.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import google_crc32c
import numpy as np

import headrace_server as hs

CHANNELS = 4
DATA = Path("demo-data")


def walks(data: str | Path = DATA, epochs: int = 4, batch_size: int = 32) -> hs.Pipeline:
    """The feed: shuffled anew in each epoch, padded to the longest walk of each batch."""
    return (
        hs.read_tfrecord(
            Path(data) / "walks-*.tfrecord",
            {
                "id": hs.scalar("int64"),
                "steps": hs.sequence("float32", (CHANNELS,)),
                "label": hs.scalar("float32"),
            },
        )
        .shuffle(seed=7)
        .repeat(epochs)
        .map(with_length)
        .batch(batch_size, allow_smaller_final_batch=True, dynamic_pad=True)
    )


def with_length(example: dict) -> dict:
    """Padding is zeros: the length tells it from steps."""
    return {**example, "length": np.int32(len(example["steps"]))}


def write(data: Path, walks: int, files: int, seed: int = 1) -> None:
    """Write the walks as TFRecord files of tf.train.Example."""
    data.mkdir(parents=True, exist_ok=True)
    for old in data.glob("walks-*.tfrecord"):
        old.unlink()
    random = np.random.default_rng(seed)
    for file in range(files):
        with open(data / f"walks-{file:02}.tfrecord", "wb") as stream:
            for number in range(file * walks // files, (file + 1) * walks // files):
                shape = (random.integers(10, 40), CHANNELS)
                steps = random.normal(random.normal(0, 0.3), 1.0, shape).astype("<f4")
                stream.write(_record(_example(number, steps)))


def _example(number: int, steps: np.ndarray) -> bytes:
    """A serialized tf.train.Example."""
    label = np.array([steps[:, 0].sum() > 0], "<f4")
    features = {
        b"id": _field(3, _field(1, _varint(number))),
        b"steps": _field(2, _field(1, steps.tobytes())),
        b"label": _field(2, _field(1, label.tobytes())),
    }
    entries = (_field(1, _field(1, name) + _field(2, value)) for name, value in features.items())
    return _field(1, b"".join(entries))


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _record(payload: bytes) -> bytes:
    """A TFRecord frame: length, its checksum, payload, its checksum."""
    length = struct.pack("<Q", len(payload))
    return length + _checksum(length) + payload + _checksum(payload)


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA, walks=4096, files=8)
