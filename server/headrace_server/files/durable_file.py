"""Files that are whole, or as they were, after a power cut; their locks; errors of a full disk.

An OSError of ``write`` names neither the file nor the free space: ``writing`` adds both.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from headrace_proto.errors import ServerError

#: Errors of a file system without room, and of a user's quota.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDY = "make room there"
#: Seconds between two attempts to lock a file.
_TRY_S = 0.02

T = TypeVar("T")


def room(path: str | os.PathLike[str], remedy: str = _REMEDY) -> str:
    """Describe the free space of a path's file system and the remedy, for the text of an error."""
    place = Path(path).absolute()
    for here in (place, *place.parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(here)
            break
    else:
        return remedy
    free = f"its file system has {found.f_bavail * found.f_frsize} bytes free"
    if found.f_files and not found.f_favail:
        free += " and no room for another file (inodes)"
    return f"{free}: {remedy}"


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], nbytes: int | None = None, remedy: str = _REMEDY
) -> Iterator[None]:
    """Let the error of a full disk name the file, the bytes wanted where known, and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        wanted = "" if nbytes is None else f" for {nbytes} bytes"
        why = os.strerror(error.errno)
        text = f"{os.fspath(path)}: there is no room{wanted}: {why}; {room(path, remedy)}"
        raise OSError(error.errno, text) from error


def write_durably(file: Path, text: str) -> None:
    """Replace a small file so that after a power cut either the old or the new one is there."""
    part = file.with_name(file.name + ".part")
    with writing(file, len(text)):
        part.write_text(text)
        put_in_place(part, file)


def read_json(file: Path, parse: Callable[[Any], T], remedy: str = "") -> T | None:
    """Return what ``parse`` makes of a JSON file, and None where there is none."""
    try:
        return parse(json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServerError(f"{file} is damaged: {error!r:.200}.  {remedy}".rstrip(" .")) from None


def put_in_place(part: Path, file: Path) -> None:
    """Give a file that was written its name, once its bytes are on the disk."""
    written = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(written)
    finally:
        os.close(written)
    os.replace(part, file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make sure that new and renamed files of a directory stay after a power cut."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def locked(path: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the flock of a file, which the kernel frees if the process dies.

    The file stays: removing it would let two processes hold it.  ``waits`` is called again and
    again while another process has the lock.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waits()
                time.sleep(_TRY_S)
        yield
    finally:
        os.close(descriptor)
