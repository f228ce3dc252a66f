"""``python -m tests.bench.remote``: files of an HTTP server whose every answer takes 20 ms.

A worker keeps a third of the data in memory.  Rates are those after the first batch.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace
import headrace_server as hs
from tests.range_server import RangeServer
from tests.unit.tfrecord_writer import example, feature, frame

FILES, EACH, SIZE, BATCH = 4, 1500, 16_384, 64
FEATURES = {"n": hs.scalar("int64"), "x": hs.scalar("bytes")}


def written(directory: Path) -> None:
    """Write the same rows as TFRecord, Arrow and tar."""
    for k in range(FILES):
        rows = [(n, np.random.default_rng(n).bytes(SIZE)) for n in range(k * EACH, (k + 1) * EACH)]
        with (directory / f"{k}.tfrecord").open("wb") as file:
            for n, x in rows:
                file.write(frame(example({"n": feature("int", [n]), "x": feature("bytes", [x])})))
        table = pa.table({"n": [n for n, _ in rows], "x": [x for _, x in rows]})
        path = str(directory / f"{k}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table, max_chunksize=100)
        with tarfile.open(directory / f"{k}.tar", "w") as out:
            for n, x in rows:
                for ending, data in (("cls", b"%d" % n), ("x", x)):
                    member = tarfile.TarInfo(f"{n:06}.{ending}")
                    member.size = len(data)
                    out.addfile(member, io.BytesIO(data))


def fed(pipeline: hs.Pipeline, column: str, directory: str) -> Iterator[int]:
    kept = {"remote_cache_bytes": FILES * EACH * SIZE // 3}
    with (
        hs.run(pipeline.batch(BATCH), state_dir=directory, durability="off", **kept) as server,
        headrace.connect(server.address) as feed,
    ):
        for batch in feed:
            yield len(batch[column])


def webdataset(url: str) -> Iterator[int]:
    import webdataset as wds  # type: ignore[import-not-found, unused-ignore]

    shards = f"pipe:curl -s {url}/{{0..{FILES - 1}}}.tar"
    rows = wds.WebDataset(shards, shardshuffle=False).shuffle(1000).to_tuple("cls", "x")
    loader = wds.WebLoader(rows.batched(BATCH), batch_size=None, num_workers=1)
    for numbers, _ in loader:
        yield len(numbers)


def main() -> None:
    with tempfile.TemporaryDirectory() as place, RangeServer(Path(place), delay_s=0.02) as store:
        written(Path(place))
        tfrecord, url = hs.read_tfrecord(f"{store.url}/*.tfrecord", FEATURES), store.url
        arrow, tar = hs.read_arrow(f"{url}/*.arrow"), hs.read_tar(f"{url}/*.tar")
        window = tar.shuffle(seed=1, window=1000)
        contestants: dict[str, Callable[[str], Iterator[Any]]] = {
            "TFRecord, index and rows": lambda state: fed(tfrecord, "n", state),
            "TFRecord, in order": lambda state: fed(tfrecord, "n", state),
            "TFRecord, exact shuffle": lambda state: fed(tfrecord.shuffle(seed=1), "n", state),
            "Arrow, in order": lambda state: fed(arrow, "n", state),
            "Arrow, exact shuffle": lambda state: fed(arrow.shuffle(seed=1), "n", state),
            "tar, window of 1000": lambda state: fed(window, "cls", state),
            "WebDataset, buffer of 1000": lambda state: webdataset(url),
        }
        print("| read | first batch, s | rows per s | bytes read per byte of rows |")
        for name, contestant in contestants.items():
            before, began, first, rows = store.sent.total(), time.monotonic(), 0.0, 0
            try:
                for count in contestant(f"{place}/state-{name.split(',')[0]}"):
                    first = first or time.monotonic() - began
                    rows += count
            except ImportError as error:
                print(f"| {name} | {error} | | |")
                continue
            rate = (rows - BATCH) / (time.monotonic() - began - first)
            read = (store.sent.total() - before) / (rows * SIZE)
            print(f"| {name} | {first:.2f} | {rate:,.0f} | {read:.2f} |", flush=True)


if __name__ == "__main__":
    main()
