"""A sheet shows what was written last, whole or not at all, and totals outlive lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.process.sheet import Sheet, SheetReader, sheet_bytes
from tests.patience import PATIENCE_S


@pytest.fixture
def reader(tmp_path: Path) -> SheetReader:
    return SheetReader(tmp_path / "sheet", sheet_bytes(1))


def test_what_was_written_last_is_read(reader: SheetReader):
    assert reader.read() == {}
    sheet = Sheet(reader.path)
    assert sheet.write({"slab": 1}) and sheet.write({"slab": 2})
    assert reader.read() == {"slab": 2}


def test_another_process_reads_it_too(reader: SheetReader):
    code = (
        "import sys; from headrace_server.process.sheet import Sheet; "
        "Sheet(sys.argv[1]).write({'a': b'x'})"
    )
    subprocess.run([sys.executable, "-c", code, reader.path], check=True, timeout=PATIENCE_S)
    assert reader.read() == {"a": b"x"}


def test_a_write_that_is_under_way_shows_what_was_there_before(reader: SheetReader):
    Sheet(reader.path).write({"slab": 1})
    assert reader.read() == {"slab": 1}
    with open(reader.path, "r+b") as file:
        file.seek(9)
        file.write(b"\xff\xff")
    assert reader.read() == {"slab": 1}


def test_what_has_no_room_is_not_written(reader: SheetReader):
    sheet = Sheet(reader.path)
    sheet.write({"slab": 1})
    assert not sheet.write({"x": b"." * 10_000})
    assert reader.read() == {"slab": 1}


def test_totals_of_lives_that_are_over_are_added(reader: SheetReader):
    Sheet(reader.path).write({"slab": 5, "totals": {"rests": {"slab": 1.5}, "feed:a": {"read": 3}}})
    reader.begin()
    assert reader.read() == {} and reader.totals() == {
        "rests": {"slab": 1.5},
        "feed:a": {"read": 3},
    }
    Sheet(reader.path).write({"totals": {"rests": {"slab": 1.0, "states": 2.0}}})
    assert reader.totals() == {"rests": {"slab": 2.5, "states": 2.0}, "feed:a": {"read": 3}}
    reader.begin()
    reader.begin()
    assert reader.totals()["rests"] == {"slab": 2.5, "states": 2.0}


def test_no_room_in_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ServerError, match=r"sheet: there is no room for 5120 bytes: .*No space"):
        SheetReader(tmp_path / "sheet", sheet_bytes(1))
