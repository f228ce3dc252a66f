"""The demo's data and its feeds: sequences that show a symbol at their first step only.

    python examples/symbols.py                        writes demo-data/symbols-*.tfrecord
    headrace serve examples/symbols.py:symbols        serves them

    step       0       1 … 9    10 … 19      20 … 29      …
    shown   symbol 2   noise     noise        noise
    asked      2         2         2            2         which symbol it was, at every step
            └─ segment 0 ──┘ └ segment 1 ┘ └ segment 2 ┘  of num_unroll=10 steps

A segment after the first says nothing of the symbol: what answers there is the state that was
carried over from the segment before, and nothing else.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import google_crc32c
import numpy as np

import headrace_server as hs

SYMBOLS = 4
UNITS = 32
NUM_UNROLL = 10
DATA = Path("demo-data")


def symbols(data: str | Path = DATA, epochs: int = 4, batch_size: int = 16) -> hs.Pipeline:
    """The feed: shuffled anew in each epoch; a trainer keeps a sequence to its end."""
    return (
        hs.read_tfrecord(
            Path(data) / "symbols-*.tfrecord",
            {
                "id": hs.scalar("bytes"),
                "steps": hs.sequence("float32", (SYMBOLS,)),
                "symbol": hs.scalar("int64"),
            },
        )
        .shuffle(seed=7)
        .repeat(epochs)
        .batch_sequences_with_states(
            input_key="id",
            input_sequences=["steps"],
            input_context=["symbol"],
            initial_states={"c": hs.zeros((UNITS,)), "h": hs.zeros((UNITS,))},
            num_unroll=NUM_UNROLL,
            batch_size=batch_size,
            order="lanes",
        )
    )


def write(data: Path, sequences: int, files: int, seed: int = 1) -> dict[str, int]:
    """Write the sequences as TFRecord files of tf.train.Example; segments of each."""
    data.mkdir(parents=True, exist_ok=True)
    for old in data.glob("symbols-*.tfrecord"):
        old.unlink()
    random = np.random.default_rng(seed)
    segments = {}
    for file in range(files):
        with open(data / f"symbols-{file:02}.tfrecord", "wb") as stream:
            for number in range(file * sequences // files, (file + 1) * sequences // files):
                length = int(random.integers(4 * NUM_UNROLL, 8 * NUM_UNROLL))
                symbol = int(random.integers(SYMBOLS))
                steps = random.normal(0, 0.1, (length, SYMBOLS)).astype("<f4")
                steps[0, symbol] += 3
                name = f"sequence-{number:05}"
                stream.write(_record(_example(name, steps, symbol)))
                segments[name] = -(-length // NUM_UNROLL)
    return segments


def _example(name: str, steps: np.ndarray, symbol: int) -> bytes:
    """A serialized tf.train.Example."""
    features = {
        b"id": _field(1, _field(1, name.encode())),
        b"steps": _field(2, _field(1, steps.tobytes())),
        b"symbol": _field(3, _field(1, _varint(symbol))),
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
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA, sequences=2000, files=8)
