"""Wrong bytes: in a journal, in record files: found, or harmless, and never believed.

    file ─► some bits turned over ─► opened as ever:   refused by name            found
                                                       less, and told so          found
                                                       all as it was              harmless
                                                       anything else              broken

The last commit of a journal that was not closed can not be told from one that the end cut short, so
the state before it is right too.  Arrow files have no checksums: there a wrong value can not be
known for one, and only a crash, a hang or a wrong number of rows is broken; how many values came
wrong is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import sys
from collections import Counter
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

_FLIPS = {"closed journal": 4000, "killed journal": 2000, "records": 3500, "arrow": 500}
_ROWS = 60
_AT_ONCE = 50  # flips of Arrow files in one process
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


def _arrow(path: Path) -> None:
    import pyarrow as pa

    told = {
        "i": pa.array(range(_ROWS), pa.int64()),
        "x": pa.array([[float(i + k) for k in range(i % 9)] for i in range(_ROWS)]),
        "s": pa.array([f"text {i}" * (i % 3) for i in range(_ROWS)]),
    }
    whole = pa.table(told)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=7)


_FEATURES = {
    "i": Feature("scalar", "int64"),
    "x": Feature("sequence", "float32"),
    "s": Feature("scalar", "bytes"),
}


def _rows(kind: str, path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return all readable rows, and the number reported as bad; DataError counts as all."""
    bad = BadRecords(skip=True, logged=1 << 30)
    features = _FEATURES if kind == "tfrecord" else None
    source = Source(kind, (str(path),), features, {})
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
    right = {row["i"]: row for row in _rows("tfrecord", whole)[0]}
    for _ in range(setup.sized(_FLIPS["records"])):
        flipped.write_bytes(damaged(data, chance))
        report.count("flips in records")
        try:
            rows, bad = _rows("tfrecord", flipped)
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


_ARROW = """
import json, random, sys
from collections import Counter
from pathlib import Path
from headrace_proto.errors import HeadraceError
from tests.trials.flips import _rows, damaged
whole, flipped, seed, n = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
chance, data, told = random.Random(seed), whole.read_bytes(), Counter()
right, _ = _rows("arrow", whole)
for number in range(n):
    print(number, file=sys.stderr, flush=True)
    flipped.write_bytes(damaged(data, chance))
    try:
        rows, bad = _rows("arrow", flipped)
    except HeadraceError:
        told["found"] += 1
    except Exception as error:
        told[f"! {type(error).__name__}: {error}"[:200]] += 1
    else:
        same = rows == right
        told["harmless" if same else "found" if bad else "wrong values, as without checksums"] += 1
print(json.dumps(told))
"""


def _arrow_flipped(setup: Setup, report: Report) -> None:
    whole, flipped = setup.scratch / "whole.arrow", setup.scratch / "flipped.arrow"
    _arrow(whole)
    left = setup.sized(_FLIPS["arrow"])
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    told: Counter[str] = Counter()
    for number in range(-(-left // _AT_ONCE)):
        n = min(_AT_ONCE, left - number * _AT_ONCE)
        seed = f"{setup.seed} arrow {number}"
        arguments = [str(whole), str(flipped), seed, str(n)]
        with contextlib.suppress(FileNotFoundError):
            flipped.unlink()
        try:
            done = subprocess.run(
                [sys.executable, "-c", _ARROW, *arguments],
                capture_output=True,
                text=True,
                env=environment,
                timeout=_PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            report.wrong(f"arrow: a reader hangs (seed {seed!r})")
            continue
        report.count("flips in Arrow files", n)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            report.wrong(f"arrow: the reader ended with {done.returncode} (seed {seed!r}): {last}")
        else:
            told.update(json.loads(done.stdout))
    for what, times in sorted(told.items()):
        if what.startswith("!"):
            report.wrong(f"arrow: {what[2:]} ({times} times)")
        else:
            report.count(f"arrow: {what}", times)


def run(setup: Setup, report: Report) -> None:
    stores("closed journal", setup, report)
    stores("killed journal", setup, report)
    _records_flipped(setup, report)
    _arrow_flipped(setup, report)
