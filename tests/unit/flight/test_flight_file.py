"""Frames on disk: whole ones are read, torn ones are not, and their total size is bounded."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.flight.flight_file import (
    FlightFile,
    frame,
    frame_at,
    frames,
    packed,
    packed_rows,
    unpacked,
)

HEADER = frame(["header"])


def flight(directory: Path, name: str = "rows-1", limit: int = 1 << 20) -> FlightFile:
    return FlightFile(directory, name, limit, 1)


def test_a_torn_tail_is_cut_off_wherever_it_is_torn(tmp_path: Path) -> None:
    values = [["header"], [1, b"abc"], [2, "x" * 40]]
    data = b"".join(map(frame, values))
    path = tmp_path / "one.flight"
    ends = np.cumsum([len(frame(value)) for value in values]).tolist()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert [value for _, value in frames(path)] == values[:whole]


def test_a_flipped_bit_ends_the_reading_and_is_never_misread(tmp_path: Path) -> None:
    values = [["header"], [1, b"abc"], [2, "x" * 40]]
    data = b"".join(map(frame, values))
    path = tmp_path / "one.flight"
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
        read = [value for _, value in frames(path)]
        assert read == values[: len(read)] and len(read) < len(values)


def test_zeros_that_a_power_cut_left_end_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "one.flight"
    path.write_bytes(frame([1]) + bytes(100))
    assert [value for _, value in frames(path)] == [[1]]


def test_a_frame_is_found_again_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "one.flight"
    path.write_bytes(b"".join(frame([n]) for n in range(9)))
    assert [frame_at(path, at) for at, _ in frames(path)] == [[n] for n in range(9)]
    assert frame_at(path, path.stat().st_size) is None
    assert frame_at(tmp_path / "gone", 0) is None and list(frames(tmp_path / "gone")) == []


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_integers_come_back_as_they_were(numbers: list[int]) -> None:
    assert unpacked(packed(np.array(numbers, np.int64))).tolist() == numbers


@given(
    st.integers(0, 40).flatmap(
        lambda size: st.lists(
            st.lists(
                st.one_of(
                    st.integers(0, 255), st.integers(0, 65_536), st.integers(-(2**63), 2**63 - 1)
                ),
                min_size=size,
                max_size=size,
            ),
            min_size=1,
            max_size=5,
        )
    )
)
def test_rows_of_a_table_come_back_as_they_were(rows: list[list[int]]) -> None:
    table = np.array(rows, np.int64).reshape(len(rows), -1)
    assert [unpacked(row).tolist() for row in packed_rows(table)] == rows


def test_rows_of_small_numbers_take_one_byte_or_two_for_each() -> None:
    table = np.array([[0, 255], [0, 256], [7, 65_535], [7, 65_536], [-1, 0]], np.int64)
    assert [len(row[1]) // 2 for row in packed_rows(table)] == [1, 2, 2, 8, 8]


def test_an_even_progression_takes_three_numbers() -> None:
    assert packed(np.arange(5, 5000, 5)) == [5, 5, 999]
    assert len(packed(np.random.default_rng(1).permutation(200))[1]) == 200


def test_all_files_together_stay_below_the_bound_and_the_oldest_go(tmp_path: Path) -> None:
    file = flight(tmp_path)
    data = frame([b"x" * 60_000])
    for _ in range(100):
        if not file.fits(len(data)):
            file.begin(HEADER, len(data))
        file.write(data)
    left = sorted(tmp_path.iterdir())
    assert sum(path.stat().st_size for path in left) <= 1 << 20
    numbers = [int(path.stem.split("-")[-1]) for path in left]
    assert len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 0
    file.close()


def test_a_file_that_is_being_written_is_not_removed(tmp_path: Path) -> None:
    slow = flight(tmp_path, "rows-0")
    slow.begin(HEADER, 10)
    quick = flight(tmp_path, "rows-1")
    data = frame([b"x" * 200_000])
    for _ in range(20):
        quick.begin(HEADER, len(data))
        quick.write(data)
    assert (tmp_path / "rows-0-000000.flight").exists()
    slow.close()
    quick.begin(HEADER, len(data))
    assert not (tmp_path / "rows-0-000000.flight").exists()
    quick.close()


def test_a_frame_larger_than_half_of_all_is_refused(tmp_path: Path) -> None:
    file = flight(tmp_path)
    with pytest.raises(ValueError, match=r"record_bytes=1048576 bounds"):
        file.begin(HEADER, 600_000)


def test_a_file_begins_with_its_header_which_is_written_with_the_first_frames(
    tmp_path: Path,
) -> None:
    file = flight(tmp_path)
    file.begin(HEADER, 10)
    (first,) = tmp_path.iterdir()
    assert first.stat().st_size == 0
    file.write(frame([0]) + frame([1]))
    file.write(frame([2]))
    assert [value for _, value in frames(first)] == [["header"], [0], [1], [2]]
    file.close()


@contextmanager
def full_disk(nbytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: a write stores only the bytes that fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_was_written_in_part_is_taken_back(tmp_path: Path) -> None:
    file = flight(tmp_path)
    file.begin(HEADER, 10)
    with full_disk(5000):
        file.write(frame([b"x" * 4000]))
        with pytest.raises(
            OSError, match=r"rows-1-000000\.flight: there is no room for 4012 bytes"
        ):
            file.write(frame([b"y" * 4000]))
    file.write(frame([b"z"]))
    file.close()
    (path,) = tmp_path.iterdir()
    assert [value[0] for _, value in frames(path)] == ["header", b"x" * 4000, b"z"]
