"""Members of tar files are those that the standard library finds, from any of them on."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.reading.forward_files import Damaged
from headrace_server.reading.sources.tar import Member, content, members
from tests.examples import some

STYLES = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def packed(files: list[tuple[str, bytes]], style: int) -> bytes:
    packed_files = io.BytesIO()
    with tarfile.open(fileobj=packed_files, mode="w", format=style) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 0.5 if style == tarfile.PAX_FORMAT else 0
            archive.addfile(info, io.BytesIO(data))
    return packed_files.getvalue()


def walked(archive: bytes, byte: int = 0) -> list[tuple[Member, bytes]]:
    stream = io.BytesIO(archive)
    return [(member, content(stream, member)) for member in members(stream, byte)]


@settings(max_examples=some(60))
@given(st.integers(0, 4095), st.integers(0, 255), st.sampled_from(STYLES))
def test_damage_ends_the_walk_or_changes_a_member_but_does_nothing_worse(
    at: int, byte: int, style: int
) -> None:
    archive = bytearray(packed([("d/é" * 40, b"x" * 600)], style))
    archive[at % len(archive)] = byte
    with suppress(Damaged):
        walked(bytes(archive))


@pytest.mark.parametrize("size", ["9" * 30, "1" * 16, "²"])
def test_a_size_that_no_archive_has_is_damage(size: str) -> None:
    info = tarfile.TarInfo("a")
    info.pax_headers = {"size": size}
    with pytest.raises(Damaged, match=r"gives the size|cut off at byte 2048"):
        walked(info.tobuf(tarfile.PAX_FORMAT) + bytes(512))
