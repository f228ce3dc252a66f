"""``python -m tests.bench.remote``: files of an S3 store that answers late, beside peers.

    moto, in a process of its own ──► headrace │ WebDataset │ MosaicML Streaming ──► batches

All of it runs in an environment of its own, since the peers pin versions.  The contestants take
turns, and the medians of the rounds count.  Rates are those after the first batch.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from .environments import Absent, Environments

FILES, EACH, SIZE, BATCH = 24, 250, 16_384, 64
#: Bytes that a worker of headrace keeps in memory: a third of the rows, or all.
THIRD, ALL = FILES * EACH * SIZE // 3, FILES * EACH * SIZE * 2
BUFFER = 1000
#: Blocks that headrace mixes; WebDataset's buffer has as many rows as four of them.
BLOCKS = 8
DELAY_MS = 20
#: The order of those that find a copy on the local disk.
_AGAIN = "shuffled, from a copy"
ROUNDS = 3
#: boto3 comes with moto, of a version that s3fs allows.
_REQUIREMENTS = (
    *(
        "moto[server]==5.2.5",
        "s3fs>=2025.1",
        "obstore>=0.12",
        "webdataset==1.0.2",
        "mosaicml-streaming==0.13.0",
    ),
    *("obstore", "pyarrow", "fsspec", "cloudpickle", "msgpack", "numpy", "pyzmq", "google-crc32c"),
)
_ROOT = Path(__file__).parents[2]
_BUCKET = "bench"


def store(delay_ms: float) -> None:
    """Serve S3; write the URL, and for each line of input the bytes that were sent, the requests,
    and how many of these came from obstore."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto, lock, counts = DomainDispatcherApplication(create_backend_app), threading.Lock(), [0] * 3

    def app(environ: Any, start: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            time.sleep(delay_ms / 1000)
        content = b"".join(moto(environ, start))
        by_obstore = environ.get("HTTP_USER_AGENT", "").startswith("object_store/")
        with lock:
            for i, more in enumerate((len(content), 1, by_obstore)):
                counts[i] += more
        return [content]

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.port}", flush=True)
    for _ in sys.stdin:
        print(*counts, flush=True)


@contextmanager
def stored(directory: Path, delay_ms: float) -> Iterator[Callable[[], np.ndarray]]:
    """Start the store with the files of a directory; yield a function that gives its counts."""
    import boto3

    command = [sys.executable, "-m", "tests.bench.remote", "store", f"--delay-ms={delay_ms}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        url = process.stdout.readline().strip()
        os.environ |= {"AWS_ENDPOINT_URL": url, "S3_ENDPOINT_URL": url}
        client = boto3.client("s3")
        client.create_bucket(Bucket=_BUCKET)
        for path in sorted(directory.rglob("*.*")):
            name = str(path.relative_to(directory))
            # curl signs no request
            client.put_object(Bucket=_BUCKET, Key=name, Body=path.read_bytes(), ACL="public-read")

        def counts() -> np.ndarray:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return np.array(process.stdout.readline().split(), int)

        yield counts


def write(directory: Path) -> None:
    """Write the same rows in all formats."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from streaming import MDSWriter  # type: ignore[import-not-found, unused-ignore]

    from tests.unit.tfrecord_writer import example, feature, frame

    for k in range(FILES):
        rows = [(n, np.random.default_rng(n).bytes(SIZE)) for n in range(k * EACH, (k + 1) * EACH)]
        with (directory / f"{k}.tfrecord").open("wb") as file:
            for n, x in rows:
                file.write(frame(example({"n": feature("int", [n]), "x": feature("bytes", [x])})))
        table = pa.table({"n": [n for n, _ in rows], "x": [x for _, x in rows]})
        path = str(directory / f"{k}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table, max_chunksize=100)
        pq.write_table(table, directory / f"{k}.parquet", row_group_size=100, compression=None)
        with tarfile.open(directory / f"{k}.tar", "w") as out:
            for n, x in rows:
                for ending, data in (("cls", b"%d" % n), ("x", x)):
                    member = tarfile.TarInfo(f"{n:06}.{ending}")
                    member.size = len(data)
                    out.addfile(member, BytesIO(data))
    columns = {"n": "int", "x": "bytes"}
    with MDSWriter(
        out=str(directory / "mds"), columns=columns, size_limit=EACH * (SIZE + 64)
    ) as shards:
        for n in range(FILES * EACH):
            shards.write({"n": n, "x": np.random.default_rng(n).bytes(SIZE)})


# ── The contestants: each yields the number of rows of every batch.


def headrace_rows(
    kind: str, calls: Callable[[Any], Any], kept: int, state: Path | None, copy: Path | None
) -> Iterator[int]:
    """``state`` has the indexes of an earlier run, and ``copy`` what it has fetched."""
    import headrace
    import headrace_server as hs

    features = {"n": hs.scalar("int64"), "x": hs.scalar("bytes")} if kind == "tfrecord" else None
    read = getattr(hs, f"read_{kind}")
    source = read(f"s3://{_BUCKET}/*.{kind}", *([features] if features else []))
    column = "cls" if kind == "tar" else "n"
    with (
        tempfile.TemporaryDirectory() as new,
        hs.run(
            calls(source).batch(BATCH),
            state_dir=state or new,
            durability="off",
            remote_cache_bytes=kept,
            cache_dir=copy,
        ) as server,
        headrace.connect(server.address) as feed,
    ):
        for batch in feed:
            yield len(batch[column])


def webdataset_rows(buffer: int) -> Iterator[int]:
    import webdataset as wds  # type: ignore[import-not-found, unused-ignore]

    shards = f"pipe:curl -s {os.environ['AWS_ENDPOINT_URL']}/{_BUCKET}/{{0..{FILES - 1}}}.tar"
    rows = wds.WebDataset(shards, shardshuffle=FILES if buffer else False)
    rows = (rows.shuffle(buffer) if buffer else rows).to_tuple("cls", "x").batched(BATCH)
    for numbers, _ in wds.WebLoader(rows, batch_size=None, num_workers=1):
        yield len(numbers)


def mosaic_rows(shuffle: bool, copy: Path | None = None) -> Iterator[int]:
    """It keeps all shards on the local disk; ``copy`` has those of an earlier run."""
    from streaming import StreamingDataset
    from streaming.base.util import (  # type: ignore[import-not-found, unused-ignore]
        clean_stale_shared_memory,
    )
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    with tempfile.TemporaryDirectory() as new:
        local = str(copy or new)
        dataset = StreamingDataset(
            remote=f"s3://{_BUCKET}/mds", local=local, shuffle=shuffle, batch_size=BATCH
        )
        for batch in DataLoader(dataset, batch_size=BATCH, num_workers=1):
            yield len(batch["n"])


def contestants(state: Path) -> dict[str, Callable[[], Iterator[int]]]:
    """Those of each order begin with its name."""
    copies = state.with_name("copies")

    def feed(
        kind: str,
        calls: Callable[[Any], Any],
        kept: int = THIRD,
        indexed: bool = True,
        copy: Path | None = None,
    ) -> Any:
        return lambda: headrace_rows(kind, calls, kept, state if indexed else None, copy)

    def exactly(source: Any) -> Any:
        return source.shuffle(seed=1)

    def by_window(source: Any) -> Any:
        return source.shuffle(seed=1, window=BUFFER)

    def by_blocks(source: Any) -> Any:
        return source.shuffle(seed=1, blocks=BLOCKS)

    def unchanged(source: Any) -> Any:
        return source

    return {
        "in order: WebDataset": lambda: webdataset_rows(0),
        "in order: MosaicML": lambda: mosaic_rows(False),
        "in order: TFRecord without an index": feed("tfrecord", unchanged, indexed=False),
        "in order: TFRecord": feed("tfrecord", unchanged),
        "in order: Arrow": feed("arrow", unchanged),
        "in order: Parquet": feed("parquet", unchanged),
        "in order: tar": feed("tar", unchanged),
        f"shuffled: WebDataset, buffer of {BUFFER}": lambda: webdataset_rows(BUFFER),
        "shuffled: MosaicML": lambda: mosaic_rows(True),
        "shuffled: TFRecord, exactly": feed("tfrecord", exactly),
        "shuffled: TFRecord, exactly, all kept": feed("tfrecord", exactly, ALL),
        "shuffled: Arrow, exactly, all kept": feed("arrow", exactly, ALL),
        "shuffled: TFRecord, blocks": feed("tfrecord", by_blocks, ALL),
        "shuffled: Arrow, blocks": feed("arrow", by_blocks, ALL),
        "shuffled: Parquet, blocks": feed("parquet", by_blocks),
        "shuffled: tar, blocks": feed("tar", by_blocks),
        f"shuffled: Parquet, window of {BUFFER}": feed("parquet", by_window),
        f"shuffled: tar, window of {BUFFER}": feed("tar", by_window),
        f"{_AGAIN}: MosaicML": lambda: mosaic_rows(True, copies / "mds"),
        f"{_AGAIN}: TFRecord, blocks": feed("tfrecord", by_blocks, copy=copies),
        f"{_AGAIN}: Parquet, blocks": feed("parquet", by_blocks, copy=copies),
        f"{_AGAIN}: TFRecord, exactly": feed("tfrecord", exactly, copy=copies),
    }


def measured(
    contestant: Callable[[], Iterator[int]], counts: Callable[[], np.ndarray]
) -> list[float]:
    """Return the seconds to the first batch, the rate after it, bytes read per byte of rows,
    processor seconds per GB of them, requests, and the part of them that obstore sent."""
    before, used, began, first, rows = counts(), _processor_s(), time.monotonic(), 0.0, 0
    for count in contestant():
        end = time.monotonic()
        first, rows = first or end - began, rows + count
    assert FILES * EACH - BATCH < rows <= FILES * EACH, rows
    nbytes, used = rows * SIZE, _processor_s() - used
    sent, requests, by_obstore = (counts() - before).tolist()
    return [
        first,
        (rows - BATCH) / (end - began - first),
        sent / nbytes,
        used / nbytes * 1e9,
        requests,
        by_obstore / max(1, requests),
    ]


def _processor_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def ratio(found: list[list[float]], beside: list[list[float]]) -> str:
    """Return the rates as parts of those of a peer: the median of the rounds, and their range."""
    parts = [own[1] / other[1] for own, other in zip(found, beside, strict=True)]
    return f"{statistics.median(parts):.2f} ({min(parts):.2f}–{max(parts):.2f})"


def compare(rounds: int, only: str, delay_ms: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        data, state = Path(place) / "data", Path(place) / "state"
        (data / "mds").mkdir(parents=True)
        write(data)
        with stored(data, delay_ms) as counts:
            results: dict[str, list[list[float]]] = {}
            chosen = {
                name: one
                for name, one in contestants(state).items()
                if any(part in name for part in only.split("|"))
            }
            by_number = [name for name in chosen if "blocks" in name or _AGAIN in name]
            for name in ("in order: TFRecord", "in order: Arrow", *by_number):
                if name in chosen:  # each leaves an index, or a copy
                    measured(chosen[name], counts)
            for number in range(rounds):
                for name, contestant in chosen.items():
                    result = measured(contestant, counts)
                    print(number, name, *(f"{one:.2f}" for one in result), file=sys.stderr)
                    results.setdefault(name, []).append(result)
    print(
        "| read | first batch, s | rows per s | / WebDataset | / MosaicML | bytes read | CPU s/GB "
        "| requests | by obstore |"
    )
    print(f"| --- |{' ---: |' * 8}")
    for name, found in results.items():
        medians = [statistics.median(values) for values in zip(*found, strict=True)]
        first, rate, read, used, requests, by_obstore = medians
        order, ratios = name.partition(":")[0], []
        for peer in ("WebDataset", "MosaicML"):
            beside = [other for n, other in results.items() if n.startswith(f"{order}: {peer}")]
            ratios.append(ratio(found, beside[0]) if beside and beside[0] is not found else "")
        cells = f"{first:.2f}", f"{rate:,.0f}", *ratios, f"{read:.2f}", f"{used:.1f}"
        cells += f"{requests:.0f}", f"{by_obstore:.0%}"
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    text = "Files of an S3 store that answers late, beside peers."
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remote", description=text)
    parser.add_argument("role", nargs="?", choices=["store", "here"], help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--only", default="", help="contestants whose name contains this, or one of these: a|b"
    )
    parser.add_argument("--delay-ms", type=float, default=DELAY_MS, help="of the store's answers")
    parser.add_argument("--data", type=Path, help="where the environment is kept")
    given = parser.parse_args()
    if given.role == "store":
        store(given.delay_ms)
    elif given.role == "here":
        compare(given.rounds, given.only, given.delay_ms)
    else:
        directory = given.data or Path(tempfile.gettempdir()) / f"headrace-bench-{os.getuid()}"
        try:
            python = Environments(directory).made("remote", _REQUIREMENTS)
        except Absent as error:
            sys.exit(str(error))
        packages = [_ROOT, *(_ROOT / package for package in ("client", "server", "proto"))]
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        command = [python, "-m", "tests.bench.remote", "here", *sys.argv[1:]]
        os.execve(python, command, {**os.environ, **environment})


if __name__ == "__main__":
    main()
