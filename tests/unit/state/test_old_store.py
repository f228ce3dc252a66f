"""A store of an earlier release is converted when it is opened, and refused when it is damaged."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import struct
import zlib
from pathlib import Path

import msgpack
import pytest

from headrace_server.core.changes import Change
from headrace_server.state.store import Store, StoreDamaged
from tests.unit.changes import Model, random_change

_TABLES = (
    "meta (name TEXT PRIMARY KEY, crc INTEGER, value BLOB) WITHOUT ROWID",
    """example (line INTEGER PRIMARY KEY, place INTEGER, chunk INTEGER, row INTEGER,
    segment INTEGER, count INTEGER, crc INTEGER, key BLOB, state BLOB)""",
    "chunk (number INTEGER PRIMARY KEY, crc INTEGER, value BLOB)",
    "done (number INTEGER PRIMARY KEY, crc INTEGER)",
    "token (place INTEGER PRIMARY KEY, token INTEGER, crc INTEGER)",
)


def crc(number: int, data: bytes = b"", place: int = 0) -> int:
    return zlib.crc32(data, zlib.crc32(struct.pack("<3q", place, number, len(data))))


def old(path: Path) -> Model:
    """A store as it was written before, killed: part of it is in the -wal file."""
    model, chance = Model(), random.Random(4)
    for _ in range(20):
        model.apply(random_change(chance))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    for table in _TABLES:
        db.execute(f"CREATE TABLE {table}")
    db.execute("PRAGMA user_version = 1")
    db.execute(f"PRAGMA application_id = {0x68647263}")
    for e in model.examples.values():
        numbers = (e.line, e.index, e.chunk, e.row, e.segment, e.count)
        key = msgpack.packb(e.key)
        head = struct.pack("<8q", *numbers, len(key), len(e.state))
        found = zlib.crc32(e.state, zlib.crc32(key, zlib.crc32(head)))
        row = (*numbers, found, key, e.state)
        db.execute("INSERT INTO example VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    for name, value in model.meta.items():
        row = (name, crc(zlib.crc32(name.encode()), value), value)
        db.execute("INSERT INTO meta VALUES (?, ?, ?)", row)
    for number, value in model.chunks.items():
        db.execute("INSERT INTO chunk VALUES (?, ?, ?)", (number, crc(number, value), value))
    for number in model.numbers:
        db.execute("INSERT INTO done VALUES (?, ?)", (number, crc(number)))
    for place, token in enumerate(model.tokens, 1):
        db.execute("INSERT INTO token VALUES (?, ?, ?)", (place, token, crc(token, place=place)))
    for file in path.parent.glob(path.name + "*"):  # a kill does not close it
        file.with_name(f"kept-{file.name}").write_bytes(file.read_bytes())
    db.close()
    for file in path.parent.glob("kept-*"):
        file.replace(file.with_name(file.name.removeprefix("kept-")))
    return model


def test_an_old_store_goes_on_as_a_journal(tmp_path: Path):
    model = old(tmp_path / "0.db")
    store = Store(tmp_path / "0.journal", "power")
    assert store.load() == model.saved
    change = Change(tokens=[5], meta={"n": b"1"})
    store.submit(change)
    store.close()
    model.apply(change)
    again = Store(tmp_path / "0.journal", "power")
    assert again.load() == model.saved
    again.close()
    assert [path.name for path in tmp_path.iterdir()] == ["0.journal"]


def test_a_damaged_old_store_is_refused_and_stays(tmp_path: Path):
    model = old(tmp_path / "0.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "0.db")) as db:
        db.execute(
            "UPDATE example SET segment = segment + 1 WHERE line = ?", (min(model.examples),)
        )
        db.commit()
    for _ in range(2):
        with pytest.raises(
            StoreDamaged, match=r"0\.journal is damaged: .*0\.db.*fails its checksum"
        ):
            Store(tmp_path / "0.journal", "power")
    assert (tmp_path / "0.db").exists() and not (tmp_path / "0.journal").exists()


def test_an_old_store_that_was_converted_is_never_gone_back_to(tmp_path: Path):
    """1. A kill comes before the old store is removed; 2. the next start removes it."""
    old(tmp_path / "0.db")
    copy = (tmp_path / "0.db").read_bytes()
    Store(tmp_path / "0.journal", "power").close()
    (tmp_path / "0.db").write_bytes(copy)
    Store(tmp_path / "0.journal", "power").close()
    assert not (tmp_path / "0.db").exists()
    (tmp_path / "0.journal").unlink()
    (tmp_path / "0.db").write_bytes(copy)
    with pytest.raises(StoreDamaged, match="it is gone, and commits were stored in it"):
        Store(tmp_path / "0.journal", "power", begun=True)
    assert (tmp_path / "0.db").exists()
