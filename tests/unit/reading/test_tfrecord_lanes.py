"""Lanes find exactly the frames that one walk from the first frame finds."""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pytest

from headrace_server.reading.sources.tfrecord import CORRUPT, scan, walk_in_lanes


def masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def head(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked(packed))


def frame(payload: bytes) -> bytes:
    return head(len(payload)) + payload + bytes(4)


def records(lengths: list[int], seed: int = 0, traps: int = 0) -> tuple[bytearray, list[int]]:
    """A file and where its frames begin; every so many payloads look like frames themselves."""
    rng = np.random.default_rng(seed)
    file, at = bytearray(), []
    for number, length in enumerate(lengths):
        payload = rng.bytes(length)
        if traps and number % traps == 0:
            payload = (frame(b"") * (length // 16 + 1))[:length]
        at.append(len(file))
        file += frame(payload)
    return file, at


def lengths_of(seed: int, n: int, kinds: tuple[int, ...]) -> list[int]:
    return [int(k) for k in np.random.default_rng(seed).choice(kinds, n)]


def known(*lengths: int) -> dict[int, int]:
    return {length: struct.unpack("<I", head(length)[8:])[0] for length in lengths}


def array(file: bytearray) -> np.ndarray:
    return np.frombuffer(bytes(file), np.uint8)


@pytest.mark.parametrize("traps", [1, 2, 50])
def test_a_payload_that_looks_like_frames_leads_no_lane_astray(traps: int):
    kinds = (0, 31, 100, 160)
    file, at = records(lengths_of(2, 30_000, kinds), traps=traps)
    position = 0
    while True:
        frames, after = walk_in_lanes(array(file), position, known(*kinds), 90.0)
        first = at.index(position)
        assert frames.tolist() == at[first : first + len(frames)]
        if not len(frames):
            break
        position = after
    assert scan(array(file)).bounds.tolist() == [*at, len(file)]


@pytest.mark.parametrize("where", [0, 3, 8, 11])
def test_damage_in_the_middle_ends_what_can_be_used(where: int):
    file, at = records(lengths_of(5, 20_000, (24, 25, 27)))
    file[at[15_000] + where] ^= 0x04
    index = scan(array(file))
    assert index.damage == CORRUPT and index.bounds.tolist() == at[:15_001]


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_is_found_as_by_a_single_walk(seed: int):
    rng = np.random.default_rng(seed)
    kinds = tuple(int(k) for k in rng.integers(0, 60, 1 + 8 * seed))
    lengths = lengths_of(seed, 30_000, kinds)
    for at in rng.integers(0, 30_000, 3):
        lengths[at] = int(rng.integers(0, 5_000))
    file, at = records(lengths, seed, traps=7)
    assert scan(array(file)).bounds.tolist() == [*at, len(file)]
    assert scan(array(file), verify=False).bounds.tolist() == [*at, len(file)]
