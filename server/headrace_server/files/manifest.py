"""The files of a source, as they were when the feed started.

Patterns are resolved once, by the supervisor; workers get the list.  A file that is gone, or no
longer the one that was listed, is an error when it is opened: versions are never mixed.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

from headrace_proto.errors import FilesMissing, HeadraceError

from .durable_file import opening
from .extras import filesystem, forget

logger = logging.getLogger("headrace.data")

T = TypeVar("T")

#: Names that file systems have for the version of a file, the sharpest first.
_STAMPS = ("etag", "ETag", "md5Hash", "mtime", "LastModified", "created")
#: Seconds before each further attempt to reach a store: a store that restarts takes some seconds.
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
#: Maximum seconds of a pause that a store asks for.
_MOST_PAUSE_S = 60.0
#: Number of files that are looked up at once.
_AT_ONCE = 32
#: Digits of the largest time in ns, which 64 bits hold.
_NS_DIGITS = 19
#: Maximum length of what a file system says of its error, which may hold a whole answer of HTML.
_MOST_TEXT = 300
#: Control characters and the ends of lines.
_UNSHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file: path or URL, size in bytes, and a stamp that changes when it is replaced."""

    path: str
    size: int
    stamp: str

    @property
    def version(self) -> str:
        """The stamp for people: that of a local file is the time of its last change, in ns."""
        if is_remote(self.path) or not self.stamp.isdecimal() or len(self.stamp) > _NS_DIGITS:
            return f"stamp {self.stamp}"
        written = datetime.fromtimestamp(int(self.stamp) / 1e9).astimezone()
        return written.isoformat(" ", "microseconds")

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
            with opening(pattern):  # glob finds nothing where no directory can be opened
                os.scandir().close()
            raise FilesMissing(f"{pattern!r} {_lacking(pattern)} (seen from {os.getcwd()})")
        for file in found:
            if _UNSHOWN.search(file.path):
                raise FilesMissing(
                    f"the name {file.path!r} has control characters, which could forge lines of a "
                    "log: rename the file"
                )
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


@lru_cache(maxsize=4096)
def system_of(url: str) -> tuple[Any, str]:
    return filesystem(url, url, FilesMissing)


def reached(url: str, what: str, call: Callable[[], T]) -> T | None:
    """Return the result of a call to a store; None where it has no such file.

    The call is made again after a fault that may pass.
    The errors of file systems, each of which has its own, become FilesMissing in a line.
    """
    renewed = False
    for attempt, pause in enumerate((*PAUSES_S, 0.0), 1):
        try:
            result = call()
        except HeadraceError:
            raise
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_TEXT].rstrip(":. ")
            final = _is_final(error)
            if final and isinstance(error, FileNotFoundError):
                return None
            if _is_refusal(error) and not renewed:
                final, renewed = False, True
                system_of.cache_clear()
                forget(url)
            if final or attempt > len(PAUSES_S):
                times = f" in {attempt} attempts" if attempt > 1 else ""
                protocol = url.partition("://")[0].rpartition("::")[2]
                raise FilesMissing(
                    f"{url} can not be {what}{times}: {text}.  Credentials and endpoint of "
                    f"{protocol}:// come from the environment of the server "
                    f"(FSSPEC_{protocol.upper()}_ENDPOINT_URL, …) or ~/.config/fsspec: "
                    "docs/operating.md, section 'Remote files'"
                ) from None
            fault = text
            time.sleep(max(pause, _asked_pause(error)))
        else:
            if attempt > 1:
                logger.warning("%s was %s at attempt %d: %s", url, what, attempt, fault)
            return result
    raise AssertionError


def _is_refusal(error: Exception) -> bool:
    """Return whether a store did not accept the credentials, which may have been renewed."""
    return isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403)


def _asked_pause(error: Exception) -> float:
    """Return the seconds that a store asked to wait (Retry-After), a minute at most."""
    cause = error.__cause__ or error
    answer = getattr(cause, "response", None)
    found = getattr(cause, "headers", None) or {}
    if isinstance(answer, dict):  # of botocore
        found = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    text = str(found.get("Retry-After", found.get("retry-after", "")))
    return min(float(text), _MOST_PAUSE_S) if text.isdecimal() else 0.0


def _is_final(error: Exception) -> bool:
    """Return whether another attempt would fail, too."""
    cause = error.__cause__ or error
    status = getattr(cause, "status", 0)
    if isinstance(error, FileNotFoundError):  # fsspec calls any fault of an HTTP server so
        return not type(cause).__module__.startswith("aiohttp") or status in (404, 410)
    refused = 400 <= status < 500 if isinstance(status, int) else False
    return isinstance(error, PermissionError) or (refused and status not in (408, 429))


def _remote(pattern: str) -> list[DataFile]:
    system, path = system_of(pattern)
    urls = [] if glob.has_magic(pattern) else [pattern]
    if not urls:
        names = reached(pattern, "listed", lambda: sorted(system.glob(path)))
        urls = [_full_url(pattern, system, name) for name in names or ()]

    def info_of(url: str) -> Mapping[str, Any] | None:
        return reached(url, "looked up", partial(system.info, system_of(url)[1]))

    with ThreadPoolExecutor(_AT_ONCE, "headrace-listing") as pool:
        infos = zip(urls, pool.map(info_of, urls), strict=True)
        return [
            _describe(url, info)
            for url, info in infos
            if info is not None and info.get("type") != "directory"
        ]


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
    if info.get("size") is None:
        raise FilesMissing(f"{url} has no size that its server names, so no part can be asked for")
    return DataFile(url, int(info["size"]), str(stamp))


def check_local(file: DataFile, status: os.stat_result) -> None:
    """Raise FilesMissing where a file is no longer the one that was listed."""
    _check(file, _of_status(file.path, status))


def check_remote(file: DataFile) -> None:
    """Ask the store for a file; raise FilesMissing where it is not the one that was listed."""

    def look() -> Mapping[str, Any]:
        system, path = system_of(file.path)
        found: Mapping[str, Any] = system.info(path)
        return found

    info = reached(file.path, "looked up", look)
    if info is None:
        raise gone(file)
    _check(file, _describe(file.path, info))


def gone(file: DataFile) -> FilesMissing:
    return FilesMissing(f"{file.path} went away while the feed runs")


def _check(file: DataFile, now: DataFile) -> None:
    if (now.size, now.stamp) != (file.size, file.stamp):
        raise FilesMissing(
            f"{file.path} was replaced while the feed runs: at the start it had {file.size} bytes "
            f"({file.version}), now it has {now.size} ({now.version})"
        )
