"""Ranges of remote files: how many requests, how many bytes, and faults of the store."""

from __future__ import annotations

import io
import json
import logging
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace_server as hs
from headrace_proto.errors import FilesMissing
from headrace_server.files import extras, manifest, ranges, s3
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile, resolve
from headrace_server.files.ranges import BLOCK, RangedFiles, RemoteFile, open_stream
from headrace_server.pipeline.declaration import Feature, ReadingOrder
from headrace_server.reading import column_parts, partition_rows
from headrace_server.reading.partition_rows import partition_reader
from headrace_server.reading.sources import arrow as arrow_source
from tests.patience import eventually
from tests.range_server import RangeServer
from tests.unit.readers import opened
from tests.unit.reading.test_cut import opened as opened_pipeline
from tests.unit.tfrecord_writer import example, feature, frame

CONTENT = np.random.default_rng(0).bytes(40 * BLOCK + 100)
#: Each example has so many bytes, and there are so many.
EACH, ROWS = 3 * BLOCK, 40


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(manifest, "PAUSES_S", (0.0,) * 5)
    monkeypatch.setattr(ranges, "_cache", ranges._Cache())
    (tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "b").write_bytes(CONTENT[::-1])
    with RangeServer(tmp_path) as server:
        yield server


def files(store: RangeServer, *names: str) -> tuple[DataFile, ...]:
    return resolve([f"{store.url}/{name}" for name in names])


def taken(source: RangedFiles, starts: Any, sizes: Any) -> list[bytes]:
    starts, sizes = np.array(starts, np.int64), np.array(sizes, np.int64)
    data, at = source.bytes_at(starts, starts + sizes)
    pairs = zip(at.tolist(), sizes.tolist(), strict=True)
    return [data[start : start + size].tobytes() for start, size in pairs]


def asked() -> set[tuple[DataFile, int]]:
    """The blocks that are here or under way."""
    cache = ranges._cache
    with cache._lock:
        return {*cache._coming, *cache._kept}


def forget() -> None:
    """Let nothing be here, once nothing is under way."""
    eventually(lambda: not ranges._cache._coming)
    needs = ranges._cache.needs
    ranges._cache.__init__()  # type: ignore[misc]
    ranges._cache.needs = needs


def test_ranges_in_any_order_have_the_bytes_of_the_files(store):
    source = RangedFiles(files(store, "a", "b"))
    draw = np.random.default_rng(1)
    for _ in range(20):
        of = draw.integers(0, 2, 30)
        starts = draw.integers(0, len(CONTENT), 30)
        sizes = np.minimum(draw.integers(0, 3 * BLOCK, 30), len(CONTENT) - starts)
        want = [
            (CONTENT, CONTENT[::-1])[k][start : start + size]
            for k, start, size in zip(of, starts, sizes, strict=True)
        ]
        assert taken(source, source.bases[of] + starts, sizes) == want


def test_near_ranges_come_by_one_request_and_each_block_once(store):
    source = RangedFiles(files(store, "a"))
    before = store.requests
    near = np.random.default_rng(2).permutation(600) * 1000
    assert taken(source, near, np.full(600, 1000)) == [CONTENT[a : a + 1000] for a in near]
    assert store.requests - before == 1
    assert store.sent["a"] == -(-600_000 // BLOCK) * BLOCK
    taken(source, near, np.full(600, 10))
    taken(source, [30 * BLOCK, 39 * BLOCK], [1, 1])  # too far apart for one
    assert store.requests - before == 3
    assert store.sent["a"] == (-(-600_000 // BLOCK) + 2) * BLOCK


def test_no_more_blocks_are_kept_than_the_bound(store, monkeypatch):
    monkeypatch.setattr(ranges._cache, "most_bytes", 5 * BLOCK)
    source = RangedFiles(files(store, "a"))
    assert taken(source, [0], [len(CONTENT)]) == [CONTENT]
    cache = ranges._cache
    assert sum(map(len, cache._kept.values())) == cache._bytes <= 5 * BLOCK


def test_a_stream_requests_what_follows_and_a_seek_ends_that(store):
    (file,) = files(store, "a")
    with open_stream(file) as stream:
        assert stream.read(100) == CONTENT[:100]
        assert store.sent["a"] == BLOCK
        assert stream.read() == CONTENT[100:]
        assert store.sent["a"] == len(CONTENT)
    assert store.requests < 20
    raw = RemoteFile(*files(store, "b"))
    for block in range(0, 40, 8):
        raw.seek(block * BLOCK)
        assert raw.read(10) == CONTENT[::-1][block * BLOCK :][:10]
    assert store.sent["b"] == 5 * BLOCK


def test_a_stream_requests_more_ahead_where_more_is_read_at_once(store):
    (file,) = files(store, "a")
    raw = RemoteFile(file)
    for _ in range(2):
        raw.read(3 * BLOCK)
    assert asked() == {(file, number) for number in range(6 + 4 * 3)}


def test_a_stream_requests_ahead_again_what_other_reads_have_displaced(store, monkeypatch):
    file, other = files(store, "a", "b")
    with open_stream(file) as stream:
        begin = b"".join(stream.read(BLOCK) for _ in range(6))
        with monkeypatch.context() as few:
            few.setattr(ranges._cache, "most_bytes", 5 * BLOCK)
            ranges.load([(file, 0, file.size), (other, 0, 6 * BLOCK)])
        before = store.requests
        assert begin + stream.read() == CONTENT
    assert store.requests - before < 8


def test_faults_are_overcome_and_told(store, caplog):
    (file,) = files(store, "a")
    with caplog.at_level(logging.WARNING, "headrace.data"), open_stream(file) as stream:
        store.due = ["503", "reset", "503", "cut", "", "503"]
        assert stream.read() == CONTENT
    assert store.failed == {"": 0, "503": 3, "reset": 1, "cut": 1}
    assert re.search(
        rf"{file.path} was read \(bytes \d+ … \d+\) at attempt \d: \w+: .", caplog.text
    )


@pytest.mark.parametrize("fault", ["503", "429", "500", "408", "reset", "cut", "short", "stall"])
def test_a_fault_that_passes_is_overcome_and_no_other_bytes_come(store, monkeypatch, fault):
    monkeypatch.setattr(ranges, "_PATIENCE_S", 1.0)
    source = RangedFiles(files(store, "a"))
    taken(source, [0], [1])
    store.due = [fault, fault]
    assert taken(source, [9 * BLOCK], [BLOCK]) == [CONTENT[9 * BLOCK : 10 * BLOCK]]
    assert store.failed[fault] >= 2 - (fault == "stall")


@pytest.mark.parametrize("fault", ["cut", "short"])
def test_less_than_was_asked_for_is_never_taken_from_a_store_without_versions(store, fault):
    store.tags = False
    try:
        source = RangedFiles(files(store, "a"))
        taken(source, [0], [1])
        store.due = [fault]
        assert taken(source, [9 * BLOCK], [BLOCK]) == [CONTENT[9 * BLOCK : 10 * BLOCK]]
        assert store.failed[fault]
    finally:
        store.tags = True


@pytest.mark.parametrize("fault", ["429 7", "503 7"])
def test_a_store_that_asks_to_wait_is_given_its_time(store, monkeypatch, fault):
    source, pauses = RangedFiles(files(store, "a")), []
    taken(source, [0], [1])
    monkeypatch.setattr(manifest.time, "sleep", pauses.append)
    store.due = [fault]
    assert taken(source, [9 * BLOCK], [1]) == [CONTENT[9 * BLOCK : 9 * BLOCK + 1]]
    assert max(pauses) == 7
    store.due = ["503 99999999"]
    taken(source, [20 * BLOCK], [1])
    assert max(pauses) == 60


@pytest.mark.parametrize("fault", ["401", "403", "400", "416"])
def test_a_refusal_is_an_error_of_a_paragraph(store, fault):
    source = RangedFiles(files(store, "a"))
    taken(source, [0], [1])
    store.due = [fault] * 6
    with pytest.raises(
        FilesMissing, match=rf"/a can not be read \(bytes .*: {fault}, message"
    ) as e:
        taken(source, [9 * BLOCK], [1])
    assert "\n" not in str(e.value)
    assert store.failed[fault] == (2 if fault in ("401", "403") else 1)  # with new credentials once


def test_credentials_that_were_renewed_are_read_again(store, tmp_path_factory, monkeypatch):
    settings = tmp_path_factory.mktemp("settings")
    monkeypatch.setattr("fsspec.config.conf_dir", str(settings))

    def renew(token: str) -> None:
        headers = {"headers": {"Authorization": f"Bearer {token}"}}
        (settings / "http.json").write_text(json.dumps({"http": headers}))

    renew("old")
    extras.forget(store.url)
    manifest.system_of.cache_clear()
    store.token = "old"
    source = RangedFiles(files(store, "a"))
    assert taken(source, [0], [1]) == [CONTENT[:1]]
    store.token = "new"
    renew("new")
    assert taken(source, [9 * BLOCK], [BLOCK]) == [CONTENT[9 * BLOCK : 10 * BLOCK]]
    store.token = ""
    (settings / "http.json").unlink()
    extras.forget(store.url)


# ── S3 ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bucket(store: RangeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return what opens the file ``a`` of a bucket with settings of s3fs."""
    (store.directory / "bucket").mkdir()
    (store.directory / "a").rename(store.directory / "bucket" / "a")

    def opened(**settings: Any) -> RangedFiles:
        given = {"endpoint_url": store.url, "key": "name", "secret": "secret", **settings}
        monkeypatch.setenv("FSSPEC_S3", json.dumps(given))
        extras.forget("s3://bucket/a")
        manifest.system_of.cache_clear()
        store.clients.clear()
        return RangedFiles(resolve(["s3://bucket/a"]))

    yield opened
    monkeypatch.delenv("FSSPEC_S3")
    extras.forget("s3://bucket/a")


def test_objects_of_s3_are_read_by_obstore_with_the_settings_of_s3fs(store, bucket):
    source = bucket()
    assert taken(source, [9 * BLOCK], [BLOCK]) == [CONTENT[9 * BLOCK : 10 * BLOCK]]
    assert taken(source, [40 * BLOCK], [100]) == [CONTENT[-100:]]
    assert store.clients
    for client in store.clients:
        assert client.startswith("object_store/")
        assert "Credential=name/" in client
    taken(bucket(anon=True, key=None, secret=None), [20 * BLOCK], [1])
    assert {client.rpartition(" ")[2] for client in store.clients} == {"unsigned"}


def test_the_credentials_of_s3_are_those_of_the_environment(store, bucket, monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "env"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", value)
    taken(bucket(key=None, secret=None), [0], [1])
    assert all("object_store" in one and "Credential=env/" in one for one in store.clients)


def test_the_first_requests_of_a_bucket_share_its_connections(store, bucket, monkeypatch):
    source, made, make = bucket(), [], s3._store
    s3._stores.clear()
    monkeypatch.setattr(s3, "_store", lambda *of: made.append(of) or make(*of))
    taken(source, [*range(0, 40 * BLOCK, 4 * BLOCK)], [1] * 10)
    assert len(made) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"requester_pays": True},
        {"version_aware": True},
        {"config_kwargs": {"connect_timeout": 5}},
        {"client_kwargs": {"verify": False}},
    ],
)
def test_settings_that_obstore_does_not_have_are_those_of_s3fs(store, bucket, odd):
    assert taken(bucket(**odd), [9 * BLOCK], [1]) == [CONTENT[9 * BLOCK : 9 * BLOCK + 1]]
    assert all("Botocore" in client for client in store.clients)


@pytest.mark.parametrize("fault", ["503 7", "reset", "cut", "short", "403"])
def test_after_a_fault_s3fs_asks_and_says_what_the_store_wants(store, bucket, monkeypatch, fault):
    source = bucket()
    taken(source, [0], [1])
    for rest_s, next_client in ((30.0, "Botocore"), (0.0, "object_store")):
        monkeypatch.setattr(s3, "_REST_S", rest_s)
        forget()
        s3._stores.clear()
        store.due = [fault]
        assert taken(source, [9 * BLOCK], [BLOCK]) == [CONTENT[9 * BLOCK : 10 * BLOCK]]
        assert "Botocore" in store.clients[-1]
        taken(source, [20 * BLOCK], [1])
        assert next_client in store.clients[-1]


def test_an_object_of_s3_that_was_replaced_is_never_taken(store, bucket):
    source = bucket()
    taken(source, [0], [1])
    (store.directory / "bucket" / "a").write_bytes(CONTENT[::-1])
    with pytest.raises(FilesMissing, match="/a was replaced while the feed runs"):
        taken(source, [20 * BLOCK], [1])


# ── The bytes that formats read ──────────────────────────────────────────────────────────────────


def blob(n: int) -> bytes:
    return np.random.default_rng(n).bytes(EACH)


def tfrecord(path: Path) -> None:
    values = ({"n": feature("int", [n]), "x": feature("bytes", [blob(n)])} for n in range(ROWS))
    path.write_bytes(b"".join(frame(example(value)) for value in values))


def table() -> pa.Table:
    return pa.table({"n": range(ROWS), "x": [blob(n) for n in range(ROWS)]})


def arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table().schema) as out:
        out.write_table(table(), max_chunksize=10)


def arrow_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table().schema) as out:
        out.write_table(table(), max_chunksize=10)


def parquet(path: Path) -> None:
    pq.write_table(table(), path, row_group_size=10, compression=None, use_dictionary=False)


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as out:
        for n in range(ROWS):
            for name, data in ((f"{n}.x", blob(n)), (f"{n}.n.cls", b"%d" % n)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


def jsonl(path: Path) -> None:
    rows = ({"n": n, "x": blob(n).hex()[:EACH]} for n in range(ROWS))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


FEATURES = {"n": Feature("scalar", "int64"), "x": Feature("scalar", "bytes")}


@pytest.mark.parametrize(
    ("write", "together"),
    [(tfrecord, 1), (arrow, 10), (arrow_stream, 10)],
    ids=["tfrecord", "arrow", "arrow stream"],
)
def test_rows_at_random_cost_their_own_bytes_or_those_of_their_record_batch(store, write, together):
    """An index that needs one pass over the file is kept, and has all that an opening needs."""
    kind = write.__name__.removesuffix("_stream")
    write(store.directory / kind)
    cache = IndexCache(str(store.directory / "indexes"))
    for most in (ROWS * EACH * 1.1 if write is not arrow else 12 * BLOCK, 12 * BLOCK):
        before = store.sent[kind]
        reader = opened(kind, f"{store.url}/{kind}", features=FEATURES, cache=cache)
        assert store.sent[kind] - before <= most
        forget()
    before = store.sent[kind]
    chunk = reader.take(np.array([31, 14]))  # not the first ones: what follows them is read ahead
    assert [chunk.columns["x"].row(i) for i in (0, 1)] == [blob(31), blob(14)]
    assert store.sent[kind] - before <= 2 * (together * EACH + 2 * BLOCK) + 8 * BLOCK


@pytest.mark.parametrize("write", [arrow, parquet, tar], ids=["arrow", "parquet", "tar"])
def test_columns_that_are_not_wanted_are_not_read(store, write):
    kind = write.__name__
    write(store.directory / kind)
    name = "n.cls" if kind == "tar" else "n"
    reader = opened(kind, f"{store.url}/{kind}", features={name: FEATURES["n"]})
    chunk, _ = reader.read(0, b"", ROWS)
    assert chunk.columns[name].tolist() == [*range(ROWS)]
    assert store.sent[kind] <= ROWS * EACH * 0.7


@pytest.mark.parametrize("write", [tfrecord, arrow, arrow_stream, parquet, tar, jsonl])
def test_each_block_is_fetched_once_in_an_epoch(store, write):
    """A start in the middle fetches the blocks that are mixed there, and no others before."""
    kind = write.__name__.removesuffix("_stream")
    write(store.directory / kind)
    cache = IndexCache(str(store.directory / "indexes"))
    order = ReadingOrder(seed=1, blocks=2, block_bytes=10 * EACH)

    def read(position: Any) -> tuple[list[int], int, Any]:
        share = partition_reader(
            opened(kind, f"{store.url}/{kind}", features=features, cache=cache), order, 0, 1
        )
        forget()
        before, found, half = store.sent[kind], [], None
        while position is not None:
            half = position if len(found) == 3 * ROWS // 4 else half
            chunk, position = share.read(3, position, 3)
            found += chunk.columns[number].tolist()
        return found, store.sent[kind] - before, half

    number = "n.cls" if kind == "tar" else "n"
    features = {number: FEATURES["n"], "x": FEATURES["x"]}
    read(0)
    found, sent, half = read(0)
    size = (store.directory / kind).stat().st_size
    assert sorted(found) == [*range(ROWS)]
    assert len({n // 10 for n in found[:10]}) == 2
    assert sent <= 1.05 * size + 2 * BLOCK
    rest, sent, _ = read(half)
    assert rest == found[-len(rest) :]
    assert sent <= 0.55 * size


def test_blocks_that_are_mixed_are_kept_beside_what_is_read_otherwise(store, monkeypatch):
    """Each is fetched once, though hardly anything is to be kept; afterwards that holds again."""
    monkeypatch.setattr(ranges._cache, "most_bytes", BLOCK)
    tfrecord(store.directory / "tfrecord")
    features = {"n": FEATURES["n"], "x": FEATURES["x"]}
    source = opened("tfrecord", f"{store.url}/tfrecord", features=features)
    order = ReadingOrder(seed=1, blocks=2, block_bytes=10 * EACH)
    share, before, found = partition_reader(source, order, 0, 1), store.sent["tfrecord"], []
    position: Any = 0
    while position is not None:
        chunk, position = share.read(0, position, 3)
        found += chunk.columns["n"].tolist()
    assert sorted(found) == [*range(ROWS)]
    assert store.sent["tfrecord"] - before <= 1.05 * ROWS * EACH + 2 * BLOCK
    del share
    assert ranges._cache.needs.kept == 0


def test_blocks_that_are_used_up_make_room_for_those_that_are_mixed(store, monkeypatch):
    """A row of the last round of a block was fetched long before the rows that were read last."""
    monkeypatch.setattr(ranges._cache, "most_bytes", BLOCK)
    monkeypatch.setattr(partition_rows, "_AHEAD_BYTES", 4 * 10 * EACH)
    for name in "cdefg":
        tfrecord(store.directory / f"{name}.tfrecord")
    source = opened("tfrecord", f"{store.url}/*.tfrecord", features=FEATURES)
    share = partition_reader(source, ReadingOrder(seed=1, blocks=4, block_bytes=10 * EACH), 0, 1)
    before = store.sent.total()
    assert sorted(all_numbers(share)) == sorted([*range(ROWS)] * 5)
    assert store.sent.total() - before <= 1.1 * 5 * ROWS * EACH


@pytest.mark.parametrize("write", [tfrecord, arrow, parquet])
def test_files_are_looked_up_and_opened_together(store, write):
    """No answer comes before all have asked, so requests that wait for each other would not end."""
    kind = write.__name__
    for k in range(8):
        write(store.directory / f"{k}.{kind}")
    cache, path = IndexCache(str(store.directory / "indexes")), f"{store.url}/*.{kind}"
    opened(kind, path, features=None if kind != "tfrecord" else FEATURES, cache=cache)
    forget()
    store.meets = 8
    store.most_files.clear()
    assert len(resolve([path])) == 8
    assert store.most_files["HEAD"] == 8
    store.most_files.clear()
    opened(kind, path, features=None if kind != "tfrecord" else FEATURES, cache=cache)
    assert store.most_files["GET"] == 8


@pytest.mark.parametrize("write", [arrow, parquet])
def test_small_groups_are_read_far_ahead_in_order(store, write):
    """No answer comes before three files were asked for."""
    kind = write.__name__
    for k in range(8):
        write(store.directory / f"{k}.{kind}")
    share = partition_reader(opened(kind, f"{store.url}/*.{kind}"), ReadingOrder(), 0, 1)
    forget()
    store.most_files.clear()
    store.meets = 3
    assert all_numbers(share) == [*range(ROWS)] * 8
    assert store.most_files["GET"] >= 3


def all_numbers(share: Any, rows: int = 3) -> list[int]:
    found: list[int] = []
    position = share.start
    while position is not None:
        chunk, position = share.read(0, position, rows)
        found += chunk.columns["n"].tolist()
    return found


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        (ReadingOrder(seed=1, window=5 * 10), 3),
        (ReadingOrder(seed=1, blocks=2, block_bytes=EACH), 60),
    ],
)
@pytest.mark.parametrize("write", [arrow, parquet])
def test_each_group_of_rows_is_decoded_once(store, monkeypatch, write, order, rows):
    """A read takes rows of all groups that are mixed, or of many that enter meanwhile."""
    kind, begun = write.__name__, []
    for k in range(4):
        write(store.directory / f"{k}.{kind}")
    source = opened(kind, f"{store.url}/*.{kind}")
    begin = column_parts.Decoded._begin

    def noted(self: Any, number: int) -> Any:
        begun.append(number)
        return begin(self, number)

    monkeypatch.setattr(column_parts.Decoded, "_begin", noted)
    share = partition_reader(source, order, 0, 1)
    share.read(0, 0, rows)
    assert len({*begun}) >= 7
    assert sorted(all_numbers(share, rows)) == sorted([*range(ROWS)] * 4)
    assert sorted(begun) == [*range(16)]


def test_blocks_that_come_at_once_are_asked_for_as_a_whole(store):
    """Those of the first rows alone would be requests on top."""
    tfrecord(store.directory / "tfrecord")
    cache = IndexCache(str(store.directory / "indexes"))
    for _ in range(2):
        source = opened("tfrecord", f"{store.url}/tfrecord", features=FEATURES, cache=cache)
        forget()
        before, sent = store.requests, store.sent["tfrecord"]
        order = ReadingOrder(seed=1, blocks=2, block_bytes=ROWS * EACH // 2)
        found = all_numbers(partition_reader(source, order, 0, 1))
    assert sorted(found) == [*range(ROWS)]
    assert store.requests - before <= 2 * -(-ROWS * EACH // (2 * ranges.REQUEST_BYTES)) + 1
    assert store.sent["tfrecord"] - sent <= ROWS * EACH + 4 * BLOCK


@pytest.mark.parametrize("fits", [True, False])
def test_an_exact_shuffle_of_files_that_fit_into_memory_reads_them_whole(store, monkeypatch, fits):
    """Else its blocks come one by one, and what is asked for is there until it is used."""
    tfrecord(store.directory / "tfrecord")
    source = opened("tfrecord", f"{store.url}/tfrecord", features=FEATURES)
    forget()
    size = ROWS * EACH
    monkeypatch.setattr(ranges, "AHEAD_BYTES", 16 * BLOCK)
    monkeypatch.setattr(ranges._cache, "most_bytes", 2 * size if fits else size // 2)
    before, sent = store.requests, store.sent["tfrecord"]
    found = all_numbers(share := partition_reader(source, ReadingOrder(seed=1), 0, 1))
    assert sorted(found) == [*range(ROWS)] and found != [*range(ROWS)]
    blocks = (store.sent["tfrecord"] - sent) / BLOCK
    if fits:
        assert store.requests - before <= 3 + 8 + 3 and blocks <= 1.1 * size / BLOCK
    else:
        assert blocks <= 4 * ROWS
    assert ranges._cache.needs.at_random == 1
    del share
    assert ranges._cache.needs.at_random == 0


def large_rows(kind: str, store: RangeServer) -> Any:
    """A source of four files, each of four blocks of ten rows."""
    for k in range(4):
        {"arrow": arrow, "parquet": parquet}[kind](store.directory / f"{k}.{kind}")
    return opened(kind, f"{store.url}/*.{kind}")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_blocks_that_are_mixed_first_come_together_and_by_their_own_bytes(store, kind):
    source, before = large_rows(kind, store), store.sent.total()
    forget()
    share = partition_reader(source, ReadingOrder(seed=1, blocks=6, block_bytes=1), 0, 1)
    share.read(0, 0, 5)
    blocks = {(file, number) for file, number in asked()}
    # the least that six blocks have, and the most that these and those ahead have
    assert 6 * 10 * EACH <= len(blocks) * BLOCK <= 16 * (10 * EACH + 2 * BLOCK)
    assert store.requests < 8 + 16 * 10 * EACH / (8 * BLOCK)
    assert store.sent.total() - before <= len(blocks) * BLOCK


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_large_blocks_are_fetched_ahead_by_their_real_bytes(store, monkeypatch, kind):
    """One is begun beside those that are mixed: it has all the bytes that are to be ahead."""
    monkeypatch.setattr(column_parts, "_AHEAD_BYTES", EACH)
    source = large_rows(kind, store)
    forget()
    share = partition_reader(source, ReadingOrder(seed=1, blocks=4, block_bytes=1), 0, 1)
    for position in range(0, 100, 5):
        share.read(0, position, 5)
        decoded = source._decoded
        assert len(decoded._ahead) <= max(1, 4 - len(decoded._kept))


def test_a_record_batch_lies_where_the_footer_has_it(store):
    """An Arrow file of which all columns are wanted is fetched by these places."""
    arrow(store.directory / "arrow")
    content = (store.directory / "arrow").read_bytes()
    (file,) = files(store, "arrow")
    reader = pa.ipc.open_file(pa.BufferReader(content))
    bounds = arrow_source._bounds_of(RemoteFile(file), file.size, reader.num_record_batches)
    found = [
        pa.ipc.read_record_batch(pa.ipc.read_message(content[start:stop]), reader.schema)
        for start, stop in bounds
    ]
    assert found == [reader.get_batch(k) for k in range(reader.num_record_batches)]


def test_a_server_whose_answers_name_no_version_is_asked_for_it(store, monkeypatch):
    source = RangedFiles(files(store, "a"))
    store.tags = False
    assert taken(source, [0], [1]) == [CONTENT[:1]]
    monkeypatch.setattr(ranges, "_TRUSTED_S", 0.0)
    (store.directory / "a").write_bytes(CONTENT[:-1])
    with pytest.raises(FilesMissing, match="/a was replaced while the feed runs"):
        taken(source, [20 * BLOCK], [1])


def test_joined_sources_are_read_ahead_together(store, monkeypatch):
    """Blocks that are expected are requested once, and those of all sources are about as many as
    one source may expect."""
    monkeypatch.setattr(ranges, "AHEAD_BYTES", 32 * BLOCK)
    for name in "cd":
        tfrecord(store.directory / f"{name}.tfrecord")
    one, two = (hs.read_tfrecord(f"{store.url}/{name}.tfrecord", FEATURES) for name in "cd")
    reader = opened_pipeline(one.concat(two))
    rows = np.random.default_rng(3).permutation(2 * ROWS)
    for order in (rows, np.sort(rows)):
        forget()
        count = reader.expect(order)
        blocks = asked()
        assert 5 <= count < 12
        assert len(blocks) < 2 * 32
        reader.take(order[:count])
        assert asked() == blocks


@pytest.mark.parametrize("order", [ReadingOrder(), ReadingOrder(5, window=5)], ids=str)
def test_the_next_file_is_begun_while_one_is_read(store, order):
    for name in "cd":
        tar(store.directory / f"{name}.tar")
    features = {"x": FEATURES["x"]}
    one, two = (hs.read_tar(f"{store.url}/{name}.tar", features) for name in "cd")
    reader = opened_pipeline(one.skip(1).map("builtins:dict").concat(two))
    share = partition_reader(reader, order, 0, 1)
    (last,) = files(store, "d.tar")
    assert last not in {file for file, _ in asked()}
    chunk, _ = share.read(0, share.start, 1)
    assert chunk.ordinals.max() < ROWS  # of the first file
    assert {number for file, number in asked() if file == last} == {*range(64)}
