"""Copies of remote files, in one directory that all workers share and that outlives them.

    <directory>/<hash of URL, size, stamp>.copy              a whole file, which workers map
                                         .<process>.part     locked while it is being copied
    <directory>/<hash>.lock                                  one worker copies, others wait

Together they weigh no more than a limit: before one is made, those that were not used for the
longest time are removed.  A file that is mapped stays readable when its copy is removed, and its
room is free when nothing maps it any more.  A file that was replaced has another name here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from headrace_proto.errors import LimitExceeded

from .durable_file import locked, opened, writing
from .manifest import DataFile, copy_whole, open_stream


class RemoteCopies:
    """The copies in one directory, of ``most_bytes`` in all (None: any number)."""

    def __init__(self, directory: str, most_bytes: int | None = None) -> None:
        self._directory, self._most = Path(directory), most_bytes

    @contextlib.contextmanager
    def opened(self, file: DataFile) -> Iterator[int]:
        """Yield a descriptor of the whole file, copied here if it was not."""
        name = file.digest()
        path = self._directory / f"{name}.copy"
        descriptor = _open_whole(path, file.size)
        if descriptor is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            with locked(self._directory / f"{name}.lock"):
                descriptor = _open_whole(path, file.size)
                if descriptor is None:  # no other worker has made it meanwhile
                    descriptor = self._copied(file, path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _copied(self, file: DataFile, path: Path) -> int:
        """Make a copy; return a descriptor of it."""
        part = path.with_suffix(f".{os.getpid()}.part")
        remedy = f"make room there for a copy of {file.path}, or lower remote_cache_bytes"
        with writing(part, file.size, remedy), open(part, "wb") as copy:
            fcntl.flock(copy, fcntl.LOCK_EX)
            try:
                with locked(self._directory / "lock"):
                    self._make_room(file)
                    copy.truncate(file.size)  # so that others count it
                with open_stream(file) as stream:
                    copy_whole(file, stream, copy)
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _make_room(self, file: DataFile) -> None:
        """Remove leftovers of killed workers, and the oldest copies until there is room."""
        for part in self._directory.glob("*.part"):
            with contextlib.suppress(OSError), opened(part) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of its living writer
                part.unlink(missing_ok=True)
        if self._most is None:
            return
        if file.size > self._most:
            raise LimitExceeded(
                f"{file.path} has {file.size} bytes, more than all copies of remote files may: "
                f"raise remote_cache_bytes={self._most}"
            )
        found = []
        for path in (*self._directory.glob("*.copy"), *self._directory.glob("*.part")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
        total = sum(size for _, _, size in found)
        for _, path, size in sorted(found):
            if total <= self._most - file.size:
                return
            if path.suffix == ".copy":  # which may be mapped
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)
                total -= size


def _open_whole(path: Path, size: int) -> int | None:
    """Return a descriptor of a copy, which is used now; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if os.fstat(descriptor).st_size == size:
        with contextlib.suppress(OSError):  # of another user: it only looks older than it is
            os.utime(path)
        return descriptor
    os.close(descriptor)
    return None
