"""Members of tar files are those that the standard library finds, from any of them on."""

from __future__ import annotations

import io
import random
import tarfile

from headrace_server.reading.forward_files import Damaged
from headrace_server.reading.sources import tar
from headrace_server.reading.sources.tar import members

NAMES = ("a.cls", "ä.x", "d/" * 40 + "a.x", "d/" * 90 + "a.x", "n" * 100, "n" * 101, "s p.x", "e/")
#: Bytes of a header: of the name, mode, size, checksum, kind, magic and prefix.
SPOTS = (0, 99, 100, 124, 134, 135, 148, 153, 154, 155, 156, 257, 262, 345)
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def drawn(chance: random.Random) -> bytes:
    """An archive of all kinds of headers, some bytes of which may be others."""
    packed = bytearray()
    for _ in range(chance.randint(1, 5)):
        form = chance.choice(FORMATS)
        names = NAMES if form != tarfile.USTAR_FORMAT else NAMES[:3]
        info = tarfile.TarInfo(chance.choice(names))
        info.size = chance.choice((0, 1, 511, 512, 700))
        info.mtime = chance.choice((0, 1.5, 10**9))
        info.type = chance.choice((*[tarfile.REGTYPE] * 6, tarfile.AREGTYPE, tarfile.DIRTYPE))
        info.linkname = ""
        header = bytearray(info.tobuf(form))
        if chance.random() < 0.5:
            first = len(header) - 512
            spot = chance.choice(SPOTS)
            header[first + spot] = chance.choice(b"\0 07/5\x80\xff-")
            if chance.random() < 0.8:  # a sound checksum of all that
                header[first + 148 : first + 156] = b" " * 8
                total = sum(header[first:])
                style = chance.choice((b"%06o\0 ", b"%06o \0", b"%07o\0", b"%07o "))
                header[first + 148 : first + 156] = style % total
        packed += header + bytes(-(-info.size // 512) * 512 if info.isreg() else 0)
    return bytes(packed) + bytes(chance.choice((0, 512, 1024)))


def test_plain_headers_are_read_as_the_standard_library_reads_them(monkeypatch):
    chance, plain = random.Random(1), tar._plain
    archives = [drawn(chance) for _ in range(1500)]
    hits = []

    def outcome(archive: bytes) -> list[object]:
        found: list[object] = []
        try:
            for member in members(io.BytesIO(archive), 0):
                found.append(member)  # noqa: PERF402
        except Damaged as error:
            found.append(str(error))
        return found

    def counted(header: bytes) -> tuple[str, int] | None:
        hits.append(plain(header))
        return hits[-1]

    monkeypatch.setattr(tar, "_plain", counted)
    fast = [*map(outcome, archives)]
    monkeypatch.setattr(tar, "_plain", lambda header: None)
    assert fast == [*map(outcome, archives)]
    assert sum(hit is not None for hit in hits) > len(hits) / 8
