"""A large file: opened for the first time, opened again, and read from far places.

    10,000,000 records of 1 kB ─┬─ as one file ─┐  first opening: every frame is looked at
                                └─ as ten files ┘  again: the index is there
    10,000,000 rows of Arrow                       no index is needed

The lengths of records alternate, so no reader can compute their places.  Each record holds its
number, and trainers note the numbers that they get.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np

import headrace_server as hs
from tests.bench import records

from .curve import Curve, Setup
from .line import Line, line

__all__ = ["arrow", "large"]

_RECORDS, _SHORT_RECORDS, _WIDTH = 10_000_000, 40_000, 240
_BATCH, _AT_ONCE = 128, 20_000
_DIGITS = 10
_LOOKS = 6
_FEATURES = {"id": hs.scalar("bytes"), "x": hs.fixed("float32", (_WIDTH,))}


def _frame(note: bytes) -> np.ndarray:
    x = np.arange(_WIDTH, dtype=np.float32)
    values = {"id": b"#" * _DIGITS, "x": x, **({"note": note} if note else {})}
    message = records.example(values)
    head = struct.pack("<Q", len(message))
    crc = struct.pack("<I", _masked(np.array([google_crc32c.value(head)], np.uint32))[0])
    return np.frombuffer(head + crc + message + bytes(4), np.uint8)


def _masked(crc: np.ndarray) -> np.ndarray:
    turned: np.ndarray = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    return turned


def _blocks(start: int, stop: int) -> Iterator[bytes]:
    """Frames of these records, two lengths by turns; a column of digits is the number."""
    frames = [_frame(b""), _frame(b"a note that is not read")]
    sizes = [len(frame) for frame in frames]
    for first in range(start, stop, _AT_ONCE):
        pairs = min(_AT_ONCE, stop - first) // 2
        block = np.empty((pairs, sum(sizes)), np.uint8)
        for which, frame in enumerate(frames):
            part = block[:, which * sizes[0] : which * sizes[0] + sizes[which]]
            part[:] = frame
            at = frame.tobytes().index(b"#" * _DIGITS)
            numbers = first + which + 2 * np.arange(pairs)
            for digit in range(_DIGITS):
                part[:, at + _DIGITS - 1 - digit] = numbers // 10**digit % 10 + ord("0")
            sums = [google_crc32c.value(row.tobytes()) for row in part[:, 12:-4]]
            part[:, -4:] = _masked(np.array(sums, np.uint32)).view(np.uint8).reshape(-1, 4)
        yield block.tobytes()


def _write(path: Path, start: int, stop: int) -> None:
    with open(path, "wb") as file:
        for block in _blocks(start, stop):
            file.write(block)


def _made(directory: Path, n: int) -> list[str]:
    """Ten files, and then the one that all of them make."""
    parts = [directory / f"part-{i}.tfrecord" for i in range(10)]
    if (directory / "made").exists():
        return [str(part) for part in parts]
    free = shutil.disk_usage(directory).free
    if free < 2.2 * 1100 * n:
        raise OSError(f"{directory} has {free} bytes left; {2200 * n} are needed")
    for i, part in enumerate(parts):
        _write(part, i * n // 10, (i + 1) * n // 10)
    with open(directory / "whole.tfrecord", "wb") as whole:
        for part in parts:
            with open(part, "rb") as file:
                shutil.copyfileobj(file, whole, 1 << 24)
    (directory / "made").touch()
    return [str(part) for part in parts]


def _forgotten(files: list[str]) -> None:
    """The kernel lets go of the pages of these files: they come from the disk again."""
    for name in files:
        with open(name, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _looked_at(running: Line, batches: int) -> tuple[float, float, float]:
    """Memory of the worker's own while it reads on: first, and the most after that; rows/s."""
    first, began, rows = running.memory_mb("worker"), time.monotonic(), running.board.rows
    most = first
    for _ in range(_LOOKS):
        running.run(batches // _LOOKS)
        most = max(most, running.memory_mb("worker"))
    return first, most, (running.board.rows - rows) / (time.monotonic() - began)


def _opened(
    curve: Curve, setup: Setup, name: str, source: hs.Pipeline, state: Path | None, n: int
) -> None:
    """Start a server, up to the first batch; then read rows from far places."""
    noted = str(setup.scratch / "noted.npy")
    pipeline = source.shuffle(seed=1).repeat().batch(_BATCH)
    began = time.monotonic()
    options = {} if state is None else {"state_dir": state, "durability": "off"}
    how = {"ids": "id", "noted": noted}
    with line(pipeline, warm=1, how=how, **options) as running:
        seconds = time.monotonic() - began
        opening = sum(running.sample().cpu[role] for role in ("worker",))
        batches = setup.of(6_000, 120)
        running.run(batches // 6)
        first, most, rate = _looked_at(running, batches)
        mapped = running.memory_mb("worker", "file")
        cost = running.best(batches // 6)
    ids = np.load(noted).astype(np.int64)
    if len(np.unique(ids)) != min(len(ids), n) or ids.max() >= n:
        raise AssertionError(f"{name}: rows are lost or twice")
    curve.add(
        name,
        {
            "s to the first batch": seconds,
            "worker CPU s to it": opening,
            "worker MB": first,
            "the most later": most,
            "mapped MB": mapped,
            "rows per s": rate,
            "CPU µs per batch": cost.per_batch_us,
            "distance of rows": float(np.abs(np.diff(ids[: _BATCH * 100])).mean() / n),
        },
    )


def large(setup: Setup) -> Curve:
    """10 GB of TFRecord as one file and as ten, opened for the first time and again."""
    n = setup.of(_RECORDS, _SHORT_RECORDS)
    parts = _made(setup.scratch, n)
    curve = Curve("file and opening")
    size = (setup.scratch / "whole.tfrecord").stat().st_size
    curve.facts.append(f"{n:,} records, {size / 1e9:.2f} GB")
    for name, files in (("one file", [str(setup.scratch / "whole.tfrecord")]), ("ten", parts)):
        source = hs.read_tfrecord(files, _FEATURES)
        state = setup.scratch / f"index of {name}"
        _forgotten(files)
        _opened(curve, setup, f"{name}, first", source, state, n)
        _opened(curve, setup, f"{name}, again", source, state, n)
        curve.grows("worker CPU s to it", f"{name}, first", f"{name}, again", 1.0)
    for name, figures in curve.points:
        grown = figures["the most later"] - figures["worker MB"]
        curve.at_most(
            f"MB of its own that the worker grows by, {name}", grown, setup.of(12.0, 24.0)
        )
    curve.grows("CPU µs per batch", "one file, again", "ten, again", 1.25)
    return curve


def arrow(setup: Setup) -> Curve:
    """Arrow IPC of 10 million rows against a thousandth of them."""
    import pyarrow as pa

    curve = Curve("rows of the file", plotted=("worker CPU s to it", "CPU µs per batch"))
    schema = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float32(), 8))])
    for n in setup.of((10_000, 1_000_000, _RECORDS), (1_000, 100_000)):
        path = setup.scratch / f"{n}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for start in range(0, n, 100_000):
                ids = np.arange(start, min(start + 100_000, n))
                x = pa.FixedSizeListArray.from_arrays(
                    pa.array(np.repeat(ids, 8).astype(np.float32)), 8
                )
                columns = [pa.array(ids), x]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        _opened(curve, setup, f"{n:,}", hs.read_arrow(str(path)), None, n)
    first, last = curve.points[0][0], curve.points[-1][0]
    curve.grows("worker CPU s to it", first, last, 2.0)
    curve.grows("CPU µs per batch", first, last, 1.5)
    return curve
