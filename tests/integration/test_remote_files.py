"""A feed over files of an HTTP server is the feed over the same files on the disk, though requests
fail at times, and it reads no more of them than it needs."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.integration.serving import connect, kill_worker
from tests.integration.test_watching import get
from tests.range_server import RangeServer
from tests.unit.tfrecord_writer import example, feature, frame

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FILES, EACH, WIDTH = 4, 60, 1024
SIZE = FILES * EACH * WIDTH * 4


def floats(n: int) -> np.ndarray:
    return np.random.default_rng(n).random(WIDTH, "f4")


def tfrecord(path: Path, numbers: range) -> None:
    with path.open("wb") as file:
        for n in numbers:
            values = {"n": feature("int", [n]), "x": feature("float", floats(n).tolist())}
            file.write(frame(example(values)))


def table(numbers: range) -> Any:
    return pa.table({"n": [*numbers], "x": [floats(n).tolist() for n in numbers]}).cast(
        pa.schema({"n": pa.int64(), "x": pa.list_(pa.float32())})
    )


def arrow(path: Path, numbers: range) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table(numbers).schema) as out:
        out.write_table(table(numbers), max_chunksize=16)


def compressed_arrow(path: Path, numbers: range) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    schema = table(numbers).schema
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as out:
        out.write_table(table(numbers), max_chunksize=16)


def arrow_stream(path: Path, numbers: range) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table(numbers).schema) as out:
        out.write_table(table(numbers), max_chunksize=16)


def parquet(path: Path, numbers: range) -> None:
    pq.write_table(table(numbers), path, row_group_size=16)


def tar(path: Path, numbers: range) -> None:
    with tarfile.open(path, "w") as out:
        for n in numbers:
            content = io.BytesIO()
            np.save(content, floats(n))
            for ending, data in (("n.cls", b"%d" % n), ("x.npy", content.getvalue())):
                member = tarfile.TarInfo(f"{n:04}.{ending}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


FEATURES = {"n": hs.scalar("int64"), "x": hs.sequence("float32")}
#: How the files of a format are written, and read; tar is read forward, the others by number.
FORMATS: dict[str, tuple[Callable[[Path, range], None], Callable[[str], hs.Pipeline]]] = {
    "tfrecord": (tfrecord, lambda paths: hs.read_tfrecord(paths, FEATURES)),
    "arrow": (arrow, hs.read_arrow),
    "compressed arrow": (compressed_arrow, hs.read_arrow),
    "arrow stream": (arrow_stream, hs.read_arrow),
    "parquet": (parquet, hs.read_parquet),
    "tar": (tar, hs.read_tar),
}


def written(directory: Path, kind: str, each: int) -> Path:
    directory.mkdir()
    for k in range(FILES):
        FORMATS[kind][0](directory / f"{k}.data", range(k * each, (k + 1) * each))
    return directory


def stream(feed: Any, batches: int | None = None) -> list[Any]:
    found = []
    for batch in feed:
        n = batch["n" if "n" in batch else "n.cls"]
        x = batch["x" if "x" in batch else "x.npy"]
        assert all(np.array_equal(row, floats(i)) for i, row in zip(n.tolist(), x, strict=True))
        found.append((batch.partition, batch.number, n.tolist()))
        if len(found) == batches:
            break
    return found


def feed_of(where: object, kind: str, shuffled: bool, epochs: int = 1) -> hs.Pipeline:
    source = FORMATS[kind][1](f"{where}/*.data")
    source = source.shuffle(seed=3, window=25 if kind == "tar" else None) if shuffled else source
    return source.repeat(epochs).batch(7, allow_smaller_final_batch=True, dynamic_pad=True)


SHAPES = {"partitions": 2, "workers": 2}
ORDERS = [(kind, True) for kind in FORMATS] + [
    (kind, False) for kind in ("tfrecord", "arrow", "tar")
]
#: Formats that are read twice, by way of a copy.
COPIED, EACH_COPIED = ("tfrecord", "arrow", "tar"), 150


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> tuple[dict[str, Path], dict[Any, Any]]:
    """The files of each format, and what each feed over local files gives; one server has all."""
    place = tmp_path_factory.mktemp("data")
    data = {kind: written(place / kind, kind, EACH) for kind in FORMATS}
    data |= {f"{kind} twice": written(place / f"{kind}2", kind, EACH_COPIED) for kind in COPIED}
    feeds = {f"{kind} {shuffled}": feed_of(data[kind], kind, shuffled) for kind, shuffled in ORDERS}
    feeds |= {f"{kind} twice": feed_of(data[f"{kind} twice"], kind, True, 2) for kind in COPIED}
    want = {}
    with hs.run({name.replace(" ", "_"): one for name, one in feeds.items()}, **SHAPES) as server:
        for name in feeds:
            with connect(server, feed=name.replace(" ", "_")) as feed:
                want[name] = stream(feed)
    return data, want


@pytest.mark.parametrize(("kind", "shuffled"), ORDERS)
def test_a_feed_over_ranges_is_that_over_local_files_and_resumes(kind, shuffled, local, tmp_path):
    data, want = local
    with RangeServer(data[kind], faults=0.1, seed=1) as store:
        far = feed_of(store.url, kind, shuffled)
        with hs.run(far, state_dir=tmp_path / "state", **SHAPES) as server:
            with connect(server) as feed:
                before = stream(feed, 9)
                token = feed.snapshot()
                stream(feed, 4)
            with connect(server, resume=token) as feed:
                after = stream(feed)
        assert before + after == want[f"{kind} {shuffled}"]
        assert store.failed.total() > 0
        # No process reads a block twice: the supervisor, and the workers before and after.
        assert store.sent.total() <= 1.3 * (1 + 2 * SHAPES["workers"]) * SIZE


@pytest.mark.parametrize("kind", COPIED)
def test_epochs_workers_and_later_servers_share_a_copy(kind, local, tmp_path):
    """A worker dies while it fills the copy.  Memory holds a third of the files."""
    data, want = local[0][f"{kind} twice"], local[1][f"{kind} twice"]
    size = sum(path.stat().st_size for path in data.iterdir())
    options = {**SHAPES, "cache_dir": tmp_path / "copy", "remote_cache_bytes": 1 << 20}
    options["http"] = "127.0.0.1:0"
    with RangeServer(data) as store:
        far = feed_of(store.url, kind, True, 2)
        with hs.run(far, **options) as server, connect(server) as feed:
            found = stream(feed, 9)
            kill_worker(server)
            assert found + stream(feed) == want
        sent = store.sent.total()
        assert size <= sent <= 1.3 * size
        with hs.run(far, **options) as server, connect(server) as feed:
            assert stream(feed) == want
            status = json.loads(get(server, "/status.json")[1])
            came = [worker["remote_bytes"] for worker in status["workers"]]
        assert store.sent.total() == sent
        assert sum(one["disk"] for one in came) > 1.5 * size
        assert not sum(one["store"] for one in came)
