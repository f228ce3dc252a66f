"""The files of a source, as they were when the feed started.

Patterns are resolved once, by the supervisor; workers get the list.  A file that is gone, or no
longer the one that was listed, is an error when it is opened: versions are never mixed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast

from headrace_proto.errors import FilesMissing, HeadraceError

from .extras import filesystem

#: Names that file systems have for the version of a file, the sharpest first.
_STAMPS = ("etag", "ETag", "md5Hash", "mtime", "LastModified", "created")
#: Bytes that are read at once from a URL.
_READ = 256 * 1024
#: Maximum length of what a file system says of its error, which may hold a whole answer of HTML.
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file: path or URL, size in bytes, and a stamp that changes when it is replaced."""

    path: str
    size: int
    stamp: str

    def to_plain(self) -> list[str | int]:
        return [self.path, self.size, self.stamp]

    def digest(self, *more: str) -> str:
        """Return 32 hex digits of this version of the file."""
        text = json.dumps([*self.to_plain(), *more])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_remote(path: str) -> bool:
    """Return whether a path is a URL for fsspec rather than a local path."""
    return "://" in path or "::" in path


def resolve(patterns: Iterable[str]) -> tuple[DataFile, ...]:
    """Return the files that patterns name, in the order of the patterns, each pattern's sorted.

    FilesMissing names the pattern that matches nothing.  A file named twice is listed once.
    """
    files: dict[str, DataFile] = {}
    for pattern in patterns:
        found = _remote(pattern) if is_remote(pattern) else _local(pattern)
        if not found:
            raise FilesMissing(f"{pattern!r} {_lacking(pattern)} (seen from {os.getcwd()})")
        for file in found:
            files.setdefault(file.path, file)
    return tuple(files.values())


def _lacking(pattern: str) -> str:
    """Return the reason why a pattern names no file."""
    if is_remote(pattern):
        return "matches no file" if glob.has_magic(pattern) else "does not exist"
    try:
        os.stat(pattern)
    except FileNotFoundError:
        return "matches no file" if glob.has_magic(pattern) else "does not exist"
    except OSError as error:
        return f"can not be reached: {error.strerror}"
    return f"is a directory: name the files in it, as {os.path.join(pattern, '*')!r}"


def _local(pattern: str) -> list[DataFile]:
    there = os.path.exists(pattern)  # perhaps a name that holds *, ? or [
    names = [pattern] if there else sorted(glob.glob(pattern, recursive=True))
    return [_stat(name) for name in names if not os.path.isdir(name)]


def _stat(path: str) -> DataFile:
    path = os.path.abspath(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise FilesMissing(f"{path} went away, or is a link to nothing") from None
    if not stat.S_ISREG(status.st_mode):  # to open a pipe would wait for its writer
        raise FilesMissing(f"{path} is no regular file")
    return _of_status(path, status)


def _of_status(path: str, status: os.stat_result) -> DataFile:
    return DataFile(path, status.st_size, str(status.st_mtime_ns))


@lru_cache(maxsize=64)
def _filesystem(url: str) -> tuple[Any, str]:
    return filesystem(url, url, FilesMissing)


@contextlib.contextmanager
def _reaching(url: str, what: str) -> Iterator[None]:
    """Raise the errors of a file system, each of which has its own, as FilesMissing in a line."""
    try:
        yield
    except (HeadraceError, FileNotFoundError):
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_TEXT].rstrip(":. ")
        protocol = url.partition("://")[0].rpartition("::")[2]
        raise FilesMissing(
            f"{url} can not be {what}: {text}.  Credentials and endpoint of {protocol}:// come "
            f"from the environment of the server (FSSPEC_{protocol.upper()}_ENDPOINT_URL, …) or "
            "~/.config/fsspec: docs/operating.md, section 'Remote files'"
        ) from None


def _remote(pattern: str) -> list[DataFile]:
    system, path = _filesystem(pattern)
    urls = [] if glob.has_magic(pattern) else [pattern]
    if not urls:
        with _reaching(pattern, "listed"), contextlib.suppress(FileNotFoundError):
            urls = [_full_url(pattern, system, name) for name in sorted(system.glob(path))]
    found = []
    for url in urls:
        with _reaching(url, "looked up"), contextlib.suppress(FileNotFoundError):
            info = system.info(_filesystem(url)[1])
            if info.get("type") != "directory":
                found.append(_describe(url, info))
    return found


def _full_url(pattern: str, system: Any, name: str) -> str:
    """Return the URL of a name from a glob.  A chain (``zip://*.csv::s3://…``) keeps its links."""
    head, chained, rest = pattern.partition("::")
    if not chained:
        return name if is_remote(name) else str(system.unstrip_protocol(name))
    if "://" in head:
        return f"{head.partition('://')[0]}://{name}::{rest}"
    return f"{head}::{rest.partition('://')[0]}://{name.partition('://')[2] or name}"


def _describe(url: str, info: Mapping[str, Any]) -> DataFile:
    stamp = next((info[key] for key in _STAMPS if key in info), "")
    return DataFile(url, int(info.get("size") or 0), str(stamp))


def _check(file: DataFile, now: DataFile) -> None:
    if (now.size, now.stamp) != (file.size, file.stamp):
        raise FilesMissing(
            f"{file.path} was replaced while the feed runs: it had {file.size} bytes and stamp "
            f"{file.stamp} at the start, and has {now.size} and {now.stamp}"
        )


def copy_whole(file: DataFile, stream: BinaryIO, copy: BinaryIO) -> None:
    """Copy a file to another one.  FilesMissing where it has not the size that it had."""
    shutil.copyfileobj(stream, copy, 1 << 20)
    if copy.tell() != file.size:
        raise FilesMissing(
            f"{file.path} had {file.size} bytes when the feed started and gives {copy.tell()} now"
        )
    copy.flush()


class _Remote(io.RawIOBase):
    """A file at a URL, whose errors name it."""

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self._url, self._stream = url, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        return int(self._stream.seek(to, whence))

    def readinto(self, buffer: Any) -> int:
        with _reaching(self._url, "read"):
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_stream(file: DataFile) -> BinaryIO:
    """Return the file as a seekable binary stream."""
    try:
        if is_remote(file.path):
            system, path = _filesystem(file.path)
            with _reaching(file.path, "opened"):
                _check(file, _describe(file.path, system.info(path)))
                raw = _Remote(file.path, system.open(path, "rb"))
            return cast(BinaryIO, io.BufferedReader(raw, _READ))
        stream = open(file.path, "rb")  # noqa: SIM115
    except FilesMissing:  # is a FileNotFoundError itself
        raise
    except FileNotFoundError:
        raise FilesMissing(f"{file.path} went away while the feed runs") from None
    except OSError as error:  # the server's user may not read it, say
        raise FilesMissing(f"{file.path} can not be opened: {error.strerror or error}") from None
    try:
        _check(file, _of_status(file.path, os.fstat(stream.fileno())))
    except BaseException:
        stream.close()
        raise
    return stream
