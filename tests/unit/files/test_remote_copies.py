"""Remote files are copied once for all workers, and together stay below their limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headrace_proto.errors import LimitExceeded
from headrace_server.files import mapped_files as module
from headrace_server.files.manifest import DataFile, resolve
from headrace_server.files.mapped_files import MappedFiles, RemoteCopies


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Files of a remote file system, and the URLs that were read."""
    memory = fsspec.filesystem("memory")
    read: list[str] = []
    given = module.open_stream

    def watched(file: DataFile) -> Any:
        read.append(file.path)
        return given(file)

    monkeypatch.setattr(module, "open_stream", watched)

    class Remote:
        urls = read

        def files(self, **content: bytes) -> list[DataFile]:
            for name, data in content.items():
                memory.pipe(f"/copies/{name}", data)
            return [resolve([f"memory://copies/{name}"])[0] for name in content]

    yield Remote()
    memory.rm("/copies", recursive=True)


def content(copies: RemoteCopies, file: DataFile) -> bytes:
    with copies.opened(file) as descriptor:
        return os.pread(descriptor, 1 << 20, 0)


def names(directory: Path, ending: str = ".copy") -> int:
    return len(list(directory.glob(f"*{ending}")))


def test_a_file_is_copied_once_for_all_that_use_the_directory(remote: Any, tmp_path: Path) -> None:
    one, two = remote.files(one=b"1" * 10, two=b"2" * 20)
    first = RemoteCopies(str(tmp_path / "kept"))
    assert content(first, one) == b"1" * 10
    again = RemoteCopies(str(tmp_path / "kept"))  # a later life
    assert [content(again, file) for file in (one, two, one)] == [b"1" * 10, b"2" * 20, b"1" * 10]
    assert len(remote.urls) == 2 and names(tmp_path / "kept") == 2


def test_several_at_once_wait_for_the_one_that_copies(remote: Any, tmp_path: Path) -> None:
    (file,) = remote.files(one=b"1" * 1000)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(content(RemoteCopies(str(tmp_path)), file)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"1" * 1000] * 4 and len(remote.urls) == 1


def test_the_oldest_copies_make_room_and_a_mapped_one_stays_readable(
    remote: Any, tmp_path: Path
) -> None:
    files = remote.files(a=b"a" * 400, b=b"b" * 400, c=b"c" * 400)
    copies = RemoteCopies(str(tmp_path), 1000)
    maps = MappedFiles(files[:1], copies=copies)
    assert maps.file_data(0).tobytes() == b"a" * 400
    content(copies, files[1])
    for place, path in enumerate(sorted(tmp_path.glob("*.copy"), key=lambda p: p.stat().st_mtime)):
        os.utime(path, (place, place))
    content(copies, files[0])  # used again, so that b is the oldest
    assert content(copies, files[2]) == b"c" * 400
    assert names(tmp_path) == 2
    read = len(remote.urls)
    content(copies, files[0])
    assert len(remote.urls) == read, "a was used later than b"
    content(copies, files[1])
    content(copies, files[2])
    assert maps.file_data(0).tobytes() == b"a" * 400


def test_a_file_that_exceeds_the_limit_alone_is_refused(remote: Any, tmp_path: Path) -> None:
    (file,) = remote.files(one=b"1" * 10)
    with pytest.raises(LimitExceeded, match=r"has 10 bytes, .* remote_cache_bytes=9"):
        content(RemoteCopies(str(tmp_path), 9), file)
    assert names(tmp_path, ".part") == 0


def test_partial_copies_of_a_killed_worker_are_removed_and_those_being_written_are_not(
    remote: Any, tmp_path: Path
) -> None:
    import fcntl

    (file,) = remote.files(one=b"1" * 10)
    (tmp_path / "dead.1.part").write_bytes(b"left")
    with open(tmp_path / "alive.2.part", "wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        content(RemoteCopies(str(tmp_path)), file)
        assert [path.name for path in tmp_path.glob("*.part")] == ["alive.2.part"]
