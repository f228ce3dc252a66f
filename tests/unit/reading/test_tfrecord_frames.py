"""The framing of TFRecord files: scanning, damage, payload checksums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.reading.sources.tfrecord import (
    CORRUPT,
    TRUNCATED,
    bad_payloads,
    scan,
)
from tests.unit.tfrecord_writer import frame


def as_array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def bounds_of(payloads: list[bytes]) -> list[int]:
    return [0, *np.cumsum([len(p) + 16 for p in payloads]).tolist()]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 90)), max_size=8))
def test_every_frame_is_found_in_runs_of_one_length_and_between_them(runs) -> None:
    payloads = [bytes([n % 251]) * n for n, times in runs for _ in range(times)]
    *bounds, damage = scan(as_array(b"".join(map(frame, payloads))))
    assert (bounds, damage) == (bounds_of(payloads), 0)


def test_a_file_cut_off_anywhere_keeps_its_whole_frames() -> None:
    payloads = [b"ab", b"", b"cde", b"cdf"]
    raw, every = b"".join(map(frame, payloads)), bounds_of(payloads)
    for size in range(len(raw) + 1):
        *bounds, damage = scan(as_array(raw[:size]))
        whole = sum(bound <= size for bound in every) - 1
        assert bounds == every[: whole + 1]
        assert damage == (0 if size in every else TRUNCATED)


@pytest.mark.parametrize("run", [0, 60, 400])
def test_a_wrong_length_ends_the_usable_part(run: int) -> None:
    payloads = [b"same"] * (run + 3)
    raw = bytearray(b"".join(map(frame, payloads)))
    at = bounds_of(payloads)[run + 1]
    for byte in range(12):  # of the length and its checksum
        broken = bytearray(raw)
        broken[at + byte] ^= 0x10
        *bounds, damage = scan(as_array(bytes(broken)))
        assert (len(bounds), damage) == (run + 2, CORRUPT)


@pytest.mark.parametrize("sizes", [[5] * 40, [5, 9] * 40, list(range(40)), [0] * 20, [5000] * 20])
def test_exactly_the_changed_payloads_fail_their_checksum(sizes: list[int]) -> None:
    payloads = [bytes([k]) * size for k, size in enumerate(sizes)]
    raw = bytearray(b"".join(map(frame, payloads)))
    bounds = np.array(bounds_of(payloads))
    raw[bounds[3] + 12] ^= 1  # the payload, or the checksum of an empty one
    raw[bounds[18] - 1] ^= 0x80  # the checksum of record 17
    starts, lengths = bounds[:-1] + 12, np.diff(bounds) - 16
    assert bad_payloads(as_array(bytes(raw)), starts, lengths).tolist() == [3, 17]
