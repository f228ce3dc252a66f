"""Files are read forward from any byte on, compressed or not, and lines have a limit."""

from __future__ import annotations

import gzip
import io
import uuid
import zlib

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from headrace_proto.errors import DataError
from headrace_server.files.manifest import resolve
from headrace_server.reading import forward_files
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.forward_files import Damaged, Lines, open_forward
from headrace_server.reading.sources import jsonl
from tests.unit.readers import all_of, opened

CONTENT = bytes(range(256)) * 9000  # more than two blocks of an inflater
KINDS = {
    "plain": bytes,
    "a.gz": gzip.compress,
    "a.TGZ": gzip.compress,
    "a.zz": zlib.compress,
    "members.gz": lambda content: b"".join(
        gzip.compress(part) + bytes(3) for part in (content[:5], b"", content[5:])
    ),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("byte", [0, 1, 1_100_000, len(CONTENT)])
def test_the_content_is_read_from_a_byte_on(tmp_path, name, byte):
    (tmp_path / name).write_bytes(KINDS[name](CONTENT))
    (file,) = resolve([str(tmp_path / name)])
    with open_forward(file, byte) as stream:
        assert stream.tell() == byte
        assert stream.read(7) == CONTENT[byte : byte + 7]
        if byte + 9 < len(CONTENT):
            stream.seek(byte + 9)
        assert stream.read() == CONTENT[byte + 9 :]
        assert stream.read(1) == b""
    with (
        pytest.raises(DataError, match=rf"{name} ends before byte {len(CONTENT) + 1} of its"),
        open_forward(file, len(CONTENT) + 1),
    ):
        pass


class Unsized(AbstractBufferedFile):
    """A file of memory as those of fsspec's network systems: ``readline`` takes no size."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.store[self.path].getvalue()[start:end]


@pytest.mark.parametrize("name", KINDS)
def test_remote_files_are_read_from_a_byte_on(name, monkeypatch):
    path = f"memory://{uuid.uuid4().hex}/{name}"
    with fsspec.open(path, "wb") as sink:
        sink.write(KINDS[name](CONTENT))
    monkeypatch.setattr(MemoryFileSystem, "open", lambda *args, **_: Unsized(*args))
    (file,) = resolve([path])
    for byte in (0, 1_100_000):
        with open_forward(file, byte) as stream:
            assert b"".join(Lines(stream, byte)) == CONTENT[byte:]


def test_lines_have_no_byte_order_mark_and_know_their_ends():
    lines = Lines(io.BytesIO(b"\xef\xbb\xbfa\r\nb\n\xef\xbb\xbfc"))
    assert [(line, lines.byte) for line in lines] == [
        (b"a\r\n", 6),
        (b"b\n", 8),
        (b"\xef\xbb\xbfc", 12),
    ]


def test_a_line_over_the_limit_is_damage(monkeypatch, tmp_path):
    monkeypatch.setattr(forward_files, "MOST_LINE", 9)
    monkeypatch.setattr(jsonl, "MOST_LINE", 9)
    assert list(Lines(io.BytesIO(b"12345678\n1"))) == [b"12345678\n", b"1"]
    lines = Lines(io.BytesIO(b"1\n123456789\n"))
    assert next(lines) == b"1\n"
    with pytest.raises(Damaged, match="a line at byte 2 has more than 9 bytes"):
        next(lines)
    content = b'{"a":1}\n{"a":    2}\n{"a":3}\n'
    for name, want in (("a.gz", [{"a": 1}]), ("a.jsonl", [{"a": 1}, {"a": 3}])):
        (tmp_path / name).write_bytes(gzip.compress(content) if name == "a.gz" else content)
        assert all_of(opened("jsonl", tmp_path / name, bad=BadRecords(skip=True))) == want
        with pytest.raises(DataError, match=f"{name}, line 2, byte 8: .*more than 9 bytes"):
            all_of(opened("jsonl", tmp_path / name))


@pytest.mark.parametrize("name", ["a.gz", "a.zz"])
@pytest.mark.parametrize(
    ("damaged", "sound"), [(slice(-3, -2), 1000), (slice(80_000, 80_100), 449)]
)
def test_a_damaged_file_gives_the_records_before_the_damaged_piece_wherever_reading_begins(
    tmp_path, name, damaged, sound
):
    """The checksum at the end is wrong, or some bytes in the middle."""
    rng = np.random.default_rng(0)
    lines = [b'{"n": %d, "x": "%s"}\n' % (n, rng.bytes(150).hex().encode()) for n in range(1000)]
    content = bytearray(KINDS[name](b"".join(lines)))
    content[damaged] = bytes(byte ^ 0xFF for byte in content[damaged])
    (tmp_path / name).write_bytes(content)
    bad = BadRecords(skip=True)
    numbers = [row["n"] for row in all_of(opened("jsonl", tmp_path / name, bad=bad))]
    assert numbers == list(range(len(numbers)))
    assert sound - 100 < len(numbers) <= sound  # so many records are in a piece of 16 kB
    assert bad.counts
    with pytest.raises(DataError, match=f"{name}, line {len(numbers) + 1}, byte"):
        all_of(opened("jsonl", tmp_path / name))
