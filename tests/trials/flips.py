"""Wrong bytes: in a journal, in record files: found, or harmless, and never believed.

    file ─► some bits turned over ─► opened as ever:   refused by name            found
                                                       less, and told so          found
                                                       all as it was              harmless
                                                       anything else              broken

The last commit of a journal that was not closed can not be told from one that the end cut short, so
the state before it is right too.
"""

from __future__ import annotations

import os
import random
import select
from pathlib import Path
from typing import Any

from headrace_proto.errors import HeadraceError, ServerError
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.journal.journal import Journal
from headrace_server.pipeline.declaration import Feature, Source
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.columns import row_of
from headrace_server.reading.sources import open_reader
from headrace_server.shaping.stored_state import Change, Saved
from tests.unit.changes import Example, examples_of

from .frame import Report, Setup

__all__ = ["damaged", "run"]

_FLIPS = {"closed journal": 4000, "killed journal": 2000, "records": 3500}
_ROWS = 60
_PATIENCE_S = 120.0


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Damage data: mostly one wrong bit; or some; or a byte; or the rest missing or zero."""
    out = bytearray(data)
    how = chance.random()
    if how < 0.9:
        for _ in range(1 if how < 0.7 else 8):
            out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    elif how < 0.95:
        out[chance.randrange(len(out))] = chance.randrange(256)
    else:
        at = chance.randrange(len(out))
        out[at : at + 512] = bytes(len(out[at : at + 512]))
    return bytes(out)


# Stores


def _commits(store: Journal, bell: int, chance: random.Random) -> list[Saved]:
    """Return the content of a store after each of some commits."""
    held: dict[int, Example] = {}
    tokens: list[int] = []
    after = []
    for number in range(12):
        some = chance.sample(range(30), 6)
        put = [
            Example(k, k, k // 7, k % 7, number, 99, 0, (0, b"%d" % k), chance.randbytes(600))
            for k in some
        ]
        drop = [chance.randrange(30)]
        store.submit(
            Change(examples_of(put), drop, meta={"n": b"%d" % number}, tokens=[number]),
            tickets=[number],
        )
        select.select([bell], [], [], _PATIENCE_S)
        os.eventfd_read(bell)
        held |= {e.line: e for e in put}
        for line in drop:
            held.pop(line, None)
        tokens = [*tokens, number]
        examples = sorted(held.values(), key=lambda e: e.index)
        saved = examples_of(examples)
        after.append(Saved({"n": b"%d" % number}, saved, {}, [], tokens))
    return after


def _made(scratch: Path, clean: bool, chance: random.Random) -> tuple[bytes, list[Saved]]:
    """Return the journal of a store that was closed or killed, and its content."""
    path, bell = scratch / f"{clean}.journal", os.eventfd(0)
    store = Journal(path, "power", bell)
    store.load()
    held = _commits(store, bell, chance)
    if clean:
        store.close()
    data = path.read_bytes()
    store.close()
    os.close(bell)
    return data, held


def _contents(path: Path) -> Saved | None:
    """Return the content, or None when it is refused by name."""
    try:
        store = Journal(path, "power")
    except ServerError as error:
        return _named(error, path)
    try:
        return store.load()
    except ServerError as error:
        return _named(error, path)
    finally:
        store.close()


def _named(error: ServerError, path: Path) -> None:
    """Check that a refusal names the file."""
    if str(path) not in str(error):
        raise AssertionError(f"refused without a name: {error}") from error


def stores(what: str, setup: Setup, report: Report) -> None:
    chance, clean = setup.chance(what), what == "closed journal"
    whole, held = _made(setup.scratch, clean, chance)
    used = whole.rstrip(b"\0")  # the rest was never written to
    path = setup.scratch / "flipped.journal"
    for _ in range(setup.sized(_FLIPS[what])):
        path.write_bytes(damaged(used, chance) + whole[len(used) :])
        report.count(f"flips in a {what}")
        try:
            saved = _contents(path)
        except Exception as error:
            report.wrong(f"{what}: {type(error).__name__}: {error}")
        else:
            if saved is None:
                report.count(f"{what}: found")
            elif saved == held[-1]:
                report.count(f"{what}: harmless")
            elif not clean and saved == held[-2]:
                report.count(f"{what}: as before the last commit")
            else:
                report.wrong(f"{what}: a state that never was")


# Files of examples


def _records(path: Path) -> None:
    from tests.unit.tfrecord_writer import example, feature, write

    write(
        path,
        [
            example(
                {
                    "i": feature("int", [i]),
                    "x": feature("float", [float(i + k) for k in range(i % 9)]),
                    "s": feature("bytes", [b"text %d" % i * (i % 3)]),
                }
            )
            for i in range(_ROWS)
        ],
    )


_FEATURES = {
    "i": Feature("scalar", "int64"),
    "x": Feature("sequence", "float32"),
    "s": Feature("scalar", "bytes"),
}


def _rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return all readable rows, and the number reported as bad; DataError counts as all."""
    bad = BadRecords(skip=True, logged=1 << 30)
    source = Source("tfrecord", (str(path),), _FEATURES, {})
    reader: Any = open_reader(source, resolve(source.paths), bad, IndexCache(None))
    try:
        chunk = reader.take(slice(0, reader.length))
        rows = [
            {name: _plain(row_of(column, i)) for name, column in chunk.columns.items()}
            for i in range(len(chunk))
        ]
    finally:
        reader.close()
    return rows, sum(bad.counts.values())


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bytes, str)) else value.tolist()


def _records_flipped(setup: Setup, report: Report) -> None:
    chance = setup.chance("records")
    whole, flipped = setup.scratch / "whole.tfrecord", setup.scratch / "flipped.tfrecord"
    _records(whole)
    data = whole.read_bytes()
    right = {row["i"]: row for row in _rows(whole)[0]}
    for _ in range(setup.sized(_FLIPS["records"])):
        flipped.write_bytes(damaged(data, chance))
        report.count("flips in records")
        try:
            rows, bad = _rows(flipped)
        except HeadraceError:
            report.count("records: found")
            continue
        except Exception as error:
            report.wrong(f"records: {type(error).__name__}: {error}")
            continue
        if any(right.get(row["i"]) != row for row in rows):
            report.wrong("records: an example that was never written")
        elif len(rows) == len(right):
            report.count("records: harmless")
        elif bad:
            report.count("records: found")
        else:
            report.wrong("records: examples are missing, and nobody says so")


def run(setup: Setup, report: Report) -> None:
    stores("closed journal", setup, report)
    stores("killed journal", setup, report)
    _records_flipped(setup, report)
