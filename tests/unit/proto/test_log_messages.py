"""The bytes of items: what a producer packs is what an owner reads, and other bytes are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.errors import ProtocolError
from headrace_proto.log_messages import (
    HEAD_BYTES,
    body_of,
    entries_of,
    pack_entries,
    pack_open,
    unpack_open,
)
from headrace_proto.schema import Field
from headrace_server.logs.records import RECORD

from .generated import steady

FIELDS = {
    "x": Field("float32", (None, 2)),
    "text": Field("bytes", (None,)),
    "level": Field("int64", ()),
    "names": Field("bytes", (2,)),
}


def objects(texts: list[bytes]) -> np.ndarray:
    return np.array([*texts, None], object)[:-1]


def packed(steps: int, texts: list[bytes]) -> bytes:
    columns: dict[str, Any] = {
        "x": np.arange(2 * steps, dtype=np.float32).reshape(steps, 2),
        "text": objects(texts),
        "level": np.array(7, np.int64),
        "names": objects([b"a", b"bc"]),
    }
    return body_of([[pack_entries(FIELDS[name], columns[name]) for name in FIELDS]])


@steady
@given(texts=st.lists(st.binary(max_size=9), max_size=5))
def test_columns_come_out_as_they_went_in(texts: list[bytes]):
    found = dict(zip(FIELDS, entries_of(FIELDS, memoryview(packed(3, texts))), strict=True))
    assert [entries for entries, _, _ in found.values()] == [3, len(texts), 1, 1]
    assert np.frombuffer(found["x"][2], np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    assert found["text"][1].tolist() == [*map(len, texts)]
    assert bytes(found["text"][2]) == b"".join(texts) and bytes(found["names"][2]) == b"abc"


@steady
@given(at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.integers(0, 80))
def test_damaged_columns_are_refused_or_fit_the_fields(at: int, byte: int, cut: int):
    data = bytearray(packed(3, [b"one", b"", b"three"]))
    data[at % len(data)] = byte
    whole = memoryview(bytes(data[: len(data) - cut]))
    try:
        found = [*entries_of(FIELDS, whole)]
    except ProtocolError:
        return
    sizes = [4 + lengths.nbytes + len(values) for _, lengths, values in found]
    assert sum(sizes) == len(whole)


@steady
@given(stands=st.dictionaries(st.binary(min_size=1, max_size=9), st.integers(0, 2**32 - 1)))
def test_open_sequences_come_out_as_they_went_in(stands: dict[bytes, int]):
    data = pack_open(stands)
    assert unpack_open(data) == stands
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(ProtocolError, match="do not fit"):
            unpack_open(wrong)


def test_an_item_costs_what_its_record_takes():
    assert RECORD.size == HEAD_BYTES
