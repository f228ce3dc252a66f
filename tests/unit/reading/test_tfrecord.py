"""TFRecord readers: numbers, positions, damage, checksums, remote files; and TensorFlow's word."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_proto.errors import DataError
from headrace_server.files.index_cache import IndexCache
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.source import IndexedSource, StreamSource
from headrace_server.reading.sources import tfrecord
from tests.examples import some
from tests.unit.readers import all_of, examples, opened, plain, streamed
from tests.unit.reading.test_example_wire import WANTED as MESSAGE
from tests.unit.reading.test_example_wire import messages
from tests.unit.tfrecord_writer import example, feature, frame, write

WANTED = {
    "n": Feature("scalar", "int64"),
    "x": Feature("sequence", "float32", (2,)),
    "id": Feature("scalar", "bytes"),
}


def payload(n: int) -> bytes:
    return example(
        {
            "n": feature("int", [n]),
            "x": feature("float", [n, 0.5] * (n % 4)),
            "id": feature("bytes", [b"id%d" % n]),
        }
    )


def row(n: int) -> dict:
    return {"n": n, "x": [[n, 0.5]] * (n % 4), "id": b"id%d" % n}


def rows(numbers) -> list[dict]:
    return [row(int(n)) for n in numbers]


def records(*paths: object, bad: BadRecords | None = None, cache: IndexCache | None = None):
    return opened("tfrecord", *paths, features=WANTED, bad=bad, cache=cache)


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """Three files with 70, 0 and 130 records."""
    parts = [range(70), range(0), range(70, 200)]
    return [write(tmp_path / f"{k}.tfrecord", map(payload, p)) for k, p in enumerate(parts)]


# --- damage ---------------------------------------------------------------------------------


SMALL = [payload(n) for n in range(5)]
BOUNDS = [0, *np.cumsum([len(p) + 16 for p in SMALL]).tolist()]


def readable(path: Path, bad: BadRecords | None = None) -> tuple[list[dict], str]:
    """Return the examples up to the first that raises, read one by one, and its error."""
    got: list[dict] = []
    try:
        reader = records(path, bad=bad)
        if isinstance(reader, IndexedSource):
            for k in range(reader.length):
                got += examples(reader.take(slice(k, k + 1)))
        else:
            position: bytes | None = b""
            while position is not None:
                chunk, position = reader.read(0, position, 1)
                got += examples(chunk)
    except DataError as error:
        return got, str(error)
    return got, ""


def test_a_truncated_file_is_refused_with_the_place_or_gives_its_whole_records(tmp_path):
    raw = b"".join(map(frame, SMALL))
    path = tmp_path / "cut"
    for size in range(1, len(raw)):
        path.write_bytes(raw[:size])
        whole = sum(bound <= size for bound in BOUNDS) - 1
        bad = BadRecords(skip=True)
        assert readable(path, bad) == (rows(range(whole)), "")
        assert bad.counts == ({} if size in BOUNDS else {"truncated_file": 1})
        if size not in BOUNDS:
            with pytest.raises(DataError) as caught:
                records(path)
            place = f"{path}, record {whole}, byte {BOUNDS[whole]}: truncated at byte {size}"
            assert place in str(caught.value)
            rest = f"the rest of the file ({size - BOUNDS[whole]} bytes) can not be read"
            assert rest in str(caught.value)


def test_any_byte_that_changes_is_found(tmp_path):
    raw = b"".join(map(frame, SMALL))
    path = tmp_path / "changed"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        record = next(k for k, bound in enumerate(BOUNDS) if bound > at) - 1
        header = at - BOUNDS[record] < 12
        got, text = readable(path)
        assert got == ([] if header else rows(range(record)))
        assert f"{path}, record {record}, byte {BOUNDS[record]}" in text
        bad = BadRecords(skip=True)
        rest = [] if header else rows(range(record + 1, 5))
        assert readable(path, bad) == (rows(range(record)) + rest, "")
        assert bad.counts == {"corrupt_file" if header else "corrupt_record": 1}


def test_damage_in_one_file_does_not_touch_the_next(tmp_path, three):
    raw = Path(three[0]).read_bytes()
    Path(three[0]).write_bytes(raw[:-1])
    bad = BadRecords(skip=True)
    reader = records(*three, bad=bad)
    assert reader.length == 199
    assert all_of(reader) == rows([*range(69), *range(70, 200)])
    assert bad.counts == {"truncated_file": 1}


def test_checksums_are_verified_when_first_read_and_not_again(three, monkeypatch):
    seen: list[int] = []
    checked = tfrecord.bad_payloads

    def counting(data, starts, lengths):
        seen.append(len(starts))
        return checked(data, starts, lengths)

    monkeypatch.setattr(tfrecord, "bad_payloads", counting)
    reader = records(*three)
    assert seen == []
    reader.take(slice(0, 50))
    reader.take(np.arange(199, -1, -1))
    reader.take(slice(0, 200))
    assert seen == [50, 150]


def test_a_record_that_breaks_a_rule_is_named_and_can_be_skipped(tmp_path):
    payloads = [payload(n) for n in range(50)]
    payloads[20] = example({"n": feature("float", [1])})
    payloads[30] = b"\xff"
    path = write(tmp_path / "a", payloads)
    with pytest.raises(DataError) as caught:
        records(path).take(slice(0, 50))
    at = sum(len(frame(p)) for p in payloads[:20])
    assert str(caught.value).startswith(f"{path}, record 20, byte {at}: feature 'n' holds float")
    bad = BadRecords(skip=True)
    chunk = records(path, bad=bad).take(slice(0, 50))
    good = [n for n in range(50) if n not in (20, 30)]
    assert examples(chunk) == rows(good)
    assert chunk.ordinals.tolist() == chunk.origin.record.tolist() == good
    assert bad.counts == {"wrong_type": 1, "corrupt_record": 1}


# --- compressed -----------------------------------------------------------------------------


def compressed(kind: str, raw: bytes) -> bytes:
    return gzip.compress(raw, mtime=0) if kind == "gzip" else zlib.compress(raw)


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_compressed_files_are_streams_from_any_position(tmp_path, kind):
    raw = b"".join(frame(payload(n)) for n in range(100))
    path = tmp_path / "any.name"
    path.write_bytes(compressed(kind, raw))
    empty = tmp_path / "nothing"
    empty.write_bytes(compressed(kind, b""))
    reader = records(path, empty)
    assert isinstance(reader, StreamSource)
    assert reader.streams == 2
    assert [streamed(reader, 0), streamed(reader, 1)] == [rows(range(100)), []]
    chunk, position = reader.read(0, b"", 9)
    assert chunk.ordinals.tolist() == list(range(9)) and len(position) <= 24
    assert chunk.origin.describe(0).startswith(f"{path}, record ")


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_compressed_file_cut_off_anywhere_is_found(tmp_path, kind):
    raw = compressed(kind, b"".join(map(frame, SMALL)))
    path = tmp_path / f"cut.{kind}"  # few bytes do not show what they are
    for size in range(1, len(raw)):
        path.write_bytes(raw[:size])
        got, text = readable(path)
        assert got == rows(range(len(got)))
        assert f"{path}, record {len(got)}, byte {BOUNDS[len(got)]}" in text
        assert f"truncated at byte {size}: the {kind} data is not complete" in text
        bad = BadRecords(skip=True)
        assert readable(path, bad) == (got, "")
        assert bad.counts == {"truncated_file": 1}


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_changed_byte_of_a_compressed_file_gives_no_wrong_example(tmp_path, kind):
    raw = compressed(kind, b"".join(map(frame, SMALL)))
    path = tmp_path / "changed"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        got, text = readable(path)
        assert got == rows(range(len(got)))
        assert text or got == rows(range(5))  # some bits hold no content: time, system, padding


# --- declarations and remote files ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "gzip"])
def test_remote_files_are_read_as_local_ones(kind, tmp_path):
    memory = fsspec.filesystem("memory")
    for k, part in enumerate((range(30), range(30, 80))):
        raw = b"".join(frame(payload(n)) for n in part)
        memory.pipe(f"/tfr/{kind}{k}", raw if kind == "plain" else compressed("gzip", raw))
    try:
        url = f"memory://tfr/{kind}*"
        assert all_of(records(url)) == rows(range(80))
        cache = IndexCache(str(tmp_path))
        for _ in range(2):  # the second time nothing is read but what is asked for
            reader = records(url, cache=cache)
            alone = records(f"memory://tfr/{kind}1", cache=cache)
            if kind == "plain":
                assert examples(reader.take(np.array([79, 2, 40]))) == rows([79, 2, 40])
                assert examples(alone.take(np.array([49, 3]))) == rows([79, 33])
    finally:
        memory.rm("/tfr", recursive=True)


# --- TensorFlow's word --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf():  # type: ignore[no-untyped-def]
    return pytest.importorskip("tensorflow")


@pytest.mark.tf
@settings(
    max_examples=some(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    written=st.lists(messages(), min_size=1, max_size=4), way=st.sampled_from(["", "GZIP", "ZLIB"])
)
def test_any_legal_message_is_read_as_tensorflow_reads_it(tf, tmp_path, written, way):
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path, way) as out:
        for record, _ in written * 9:
            out.write(record)
    assert all_of(opened("tfrecord", path, features=MESSAGE)) == [row for _, row in written] * 9
    dtypes = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
    spec = {
        name: tf.io.FixedLenSequenceFeature([], dtypes[of.dtype], allow_missing=True)
        if of.kind == "sequence"
        else tf.io.FixedLenFeature(of.shape, dtypes[of.dtype])
        for name, of in MESSAGE.items()
    }
    for record, row in written:
        parsed = tf.io.parse_single_example(record, spec)
        assert {name: plain(value.numpy()) for name, value in parsed.items()} == row


@pytest.mark.tf
def test_sequence_examples_written_by_tensorflow_are_read(tf, tmp_path):
    def steps(n: int):
        ints = [tf.train.Feature(int64_list=tf.train.Int64List(value=[i])) for i in range(n)]
        return tf.train.FeatureList(feature=ints)

    one = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5]))
    made = [
        tf.train.SequenceExample(
            context=tf.train.Features(feature={"x": one}),
            feature_lists=tf.train.FeatureLists(feature_list={"steps": steps(n)}),
        ).SerializeToString()
        for n in range(4)
    ]
    wanted = {"x": Feature("scalar", "float32"), "steps": Feature("sequence", "int64")}
    read = opened("tfrecord", write(tmp_path / "a", made), features=wanted)
    assert all_of(read) == [{"x": 0.5, "steps": list(range(n))} for n in range(4)]
