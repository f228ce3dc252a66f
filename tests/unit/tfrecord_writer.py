"""A tiny writer of TFRecord files and of the messages in them, for tests of their reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.records import field, frame, varint


def feature(kind: str, values: Sequence[Any], packed: bool = True) -> bytes:
    """A Feature of ``bytes``, ``float`` or ``int`` values."""
    if kind == "bytes":
        return field(1, b"".join(field(1, value) for value in values))
    if kind == "float":
        raw = [struct.pack("<f", value) for value in values]
        inner = field(1, b"".join(raw)) if packed else b"".join(b"\x0d" + item for item in raw)
        return field(2, inner if values else b"")
    raw = [varint(value) for value in values]
    inner = field(1, b"".join(raw)) if packed else b"".join(b"\x08" + item for item in raw)
    return field(3, inner if values else b"")


def features(entries: Iterable[tuple[str, bytes]]) -> bytes:
    return b"".join(field(1, field(1, n.encode()) + field(2, value)) for n, value in entries)


def example(entries: Mapping[str, bytes] | Iterable[tuple[str, bytes]]) -> bytes:
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    return field(1, features(pairs))


def sequence_example(context: Mapping[str, bytes], lists: Mapping[str, Sequence[bytes]]) -> bytes:
    listed = [(name, b"".join(field(1, s) for s in steps)) for name, steps in lists.items()]
    return field(1, features(context.items())) + field(2, features(listed))


def write(path: Path, payloads: Iterable[bytes]) -> str:
    path.write_bytes(b"".join(map(frame, payloads)))
    return str(path)
