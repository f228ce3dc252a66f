"""The framing of TFRecord files: scanning, damage, payload checksums."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_server.reading.sources.tfrecord.frames import bad_payloads
from tests.unit.tfrecord_writer import frame


def as_array(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def bounds_of(payloads: list[bytes]) -> list[int]:
    return [0, *np.cumsum([len(p) + 16 for p in payloads]).tolist()]


@pytest.mark.parametrize("sizes", [[5] * 40, [5, 9] * 40, list(range(40)), [0] * 20, [5000] * 20])
def test_exactly_the_changed_payloads_fail_their_checksum(sizes):
    payloads = [bytes([k]) * size for k, size in enumerate(sizes)]
    raw = bytearray(b"".join(map(frame, payloads)))
    bounds = np.array(bounds_of(payloads))
    raw[bounds[3] + 12] ^= 1  # the payload, or the checksum of an empty one
    raw[bounds[18] - 1] ^= 0x80  # the checksum of record 17
    starts, lengths = bounds[:-1] + 12, np.diff(bounds) - 16
    assert bad_payloads(as_array(bytes(raw)), starts, lengths).tolist() == [3, 17]
