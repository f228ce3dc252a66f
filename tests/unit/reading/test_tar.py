"""Tar files of examples: groups, endings, positions, and archives that break off."""

from __future__ import annotations

import io
import os
import tarfile
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto import limits
from headrace_proto.errors import DataError
from headrace_server.files.index_cache import IndexCache
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from tests.examples import some
from tests.unit.readers import all_of, examples, opened, write


def packed(*members: tuple[str, bytes], style: int = tarfile.GNU_FORMAT) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=style) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def test_entries_that_belong_to_no_example_are_skipped(tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("README", tarfile.REGTYPE),
            (".hidden", tarfile.REGTYPE),
            ("l.txt", tarfile.SYMTYPE),
            ("1.txt", tarfile.REGTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type = kind
            archive.addfile(info)
    assert all_of(opened("tar", write(tmp_path / "a", content.getvalue()))) == [
        {"__key__": b"1", "txt": b""}
    ]


@settings(max_examples=some(40))
@given(
    st.lists(
        st.tuples(st.text("ab/é", min_size=1, max_size=150), st.binary(max_size=1100)),
        max_size=5,
    ),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from(["a.tar", "a.tar.gz"]),
)
def test_a_packed_archive_is_read_from_any_position(files, style, name):
    listed = [(f"{i}/x{stem.strip('/')}.bin", data) for i, (stem, data) in enumerate(files)]
    path = write(f"memory://{uuid.uuid4().hex}/{name}", packed(*listed, style=style))
    features = {"__key__": Feature("scalar", "bytes"), "bin": Feature("scalar", "bytes")}
    got = all_of(opened("tar", path, features=features))
    assert got == [{"__key__": stem[:-4].encode(), "bin": data} for stem, data in listed]


CLS = {"cls": Feature("scalar", "int64")}


def test_an_archive_that_breaks_off_has_the_examples_before_by_number(tmp_path):
    content = packed(*[(f"{i}.cls", b"%d" % i) for i in range(3)])
    path = write(tmp_path / "a.tar", content[:2700])
    with pytest.raises(DataError, match=r"a.tar, record 2: the archive is cut off at byte 3072; n"):
        opened("tar", path, features=CLS).by_number()
    bad = BadRecords(skip=True)
    reader = opened("tar", path, features=CLS, bad=bad).by_number()
    assert [row["cls"] for row in examples(reader.take(slice(0, reader.length)))] == [0, 1]
    assert bad.counts == {"truncated_file": 1}


def test_a_fault_of_an_example_is_reported_by_number_too(tmp_path):
    path = write(tmp_path / "a.tar", packed(("0.cls", b"0"), ("1.cls", b"x"), ("2.cls", b"2")))
    bad = BadRecords(skip=True)
    reader = opened("tar", path, features=CLS, bad=bad).by_number()
    assert reader.take(slice(0, 3)).ordinals.tolist() == [0, 2]
    with pytest.raises(DataError, match=r"a.tar, record 1, byte 1024: member '1.cls': b'x' is no"):
        opened("tar", path, features=CLS).by_number().take(slice(1, 2))


def test_an_archive_that_changed_under_its_index_is_refused(tmp_path):
    path = tmp_path / "a.tar"
    write(path, packed(("0.cls", b"0"), ("1.cls", b"1")))
    cache, before = IndexCache(str(tmp_path / "indexes")), path.stat()
    opened("tar", path, features=CLS, cache=cache).by_number()
    content = path.read_bytes()
    path.write_bytes(b"x" * 1500 + content[1500:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = opened("tar", path, features=CLS, cache=cache, bad=BadRecords(skip=True))
    with pytest.raises(DataError, match=r"a.tar has changed, though its size"):
        again.by_number()


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_the_error_of_a_truncated_archive_says_that_it_is_cut_off(tmp_path, name):
    content = packed(*[(f"{i}.cls", b"%d" % i) for i in range(3)])
    for cut in (100, 512, 600, 1024, 1100, 1536, 3 * 1024 - 1, 3 * 1024):
        path = write(tmp_path / name, content[:cut])
        with pytest.raises(DataError, match=rf"{name}, record \d.*cut off at byte"):
            opened("tar", path, features=CLS).read(0, b"", 9)
        bad = BadRecords(skip=True)
        chunk, end = opened("tar", path, features=CLS, bad=bad).read(0, b"", 9)
        assert end is None
        whole = max(0, cut // 1024 - 1) if cut % 1024 == 0 else cut // 1024
        assert [row["cls"] for row in examples(chunk)] in (
            list(range(whole)),
            list(range(max(0, whole - 1))),
        )
        assert bad.counts == {"truncated_file": 1}


def test_a_damaged_header_ends_the_archive_loudly(tmp_path):
    content = bytearray(packed(*[(f"{i}.cls", b"%d" % i) for i in range(4)]))
    content[2048 + 5] ^= 255
    path = write(tmp_path / "a", bytes(content))
    with pytest.raises(DataError, match=r"record 1, .*the header at byte 2048 is damaged"):
        opened("tar", path, features=CLS).read(0, b"", 9)
    bad = BadRecords(skip=True)
    chunk, end = opened("tar", path, features=CLS, bad=bad).read(0, b"", 9)
    assert (end, [row["cls"] for row in examples(chunk)]) == (None, [0])
    assert bad.counts == {"corrupt_file": 1}


def test_an_example_of_a_whole_archive_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_COLUMNS", 5)
    frames = [(f"frame.{i:04}.jpg", b"x") for i in range(9)]
    path = write(tmp_path / "a", packed(("1.cls", b"1"), *frames, ("3.cls", b"3")))
    with pytest.raises(
        DataError, match=r"record 1, .*member 'frame.0005.jpg': .*more than 5 columns: .*first dot"
    ):
        opened("tar", path, features=CLS).read(0, b"", 9)
    bad = BadRecords(skip=True)
    assert all_of(opened("tar", path, features=CLS, bad=bad)) == [{"cls": 1}, {"cls": 3}]
