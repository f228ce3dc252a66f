"""Members of tar files are those that the standard library finds, from any of them on."""

from __future__ import annotations

import io
import tarfile

import pytest

from headrace_server.reading.forward_files import Damaged
from headrace_server.reading.sources.tar import Member, content, members


def walked(archive: bytes, byte: int = 0) -> list[tuple[Member, bytes]]:
    stream = io.BytesIO(archive)
    return [(member, content(stream, member)) for member in members(stream, byte)]


@pytest.mark.parametrize("size", ["9" * 30, "1" * 16, "²"])
def test_a_size_that_no_archive_has_is_damage(size):
    info = tarfile.TarInfo("a")
    info.pax_headers = {"size": size}
    with pytest.raises(Damaged, match=r"gives the size|cut off at byte 2048"):
        walked(info.tobuf(tarfile.PAX_FORMAT) + bytes(512))
