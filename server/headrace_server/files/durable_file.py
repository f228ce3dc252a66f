"""Files that are whole, or as they were, after a power cut; their locks; room for them on a disk.

An OSError of ``write`` names neither the file nor the free space: ``writing`` adds both.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace_proto.errors import LimitExceeded, ServerError

#: Errors of a file system without room, and of a user's quota.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDY = "make room there"
#: Maximum number of files that a source keeps open; one that is compressed costs an inflater (some
#: 50 kB) and a block.
MOST_OPEN: Final = 32
#: Seconds between two attempts to lock a file.
_TRY_S = 0.02

#: The largest number of 64 bits.
_MOST = 2**63 - 1

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


@contextlib.contextmanager
def opening(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let the error of a process that may open no more files say how many it needs."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise LimitExceeded(
            f"{os.fspath(path)} can not be opened: this process has all {most} files and sockets "
            f"open that it may (RLIMIT_NOFILE), and a source needs up to {MOST_OPEN}: raise the "
            f"limit to {most + MOST_OPEN} or more (ulimit -n, LimitNOFILE=)"
        ) from None


@contextlib.contextmanager
def usable(argument: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Let the error of a directory or file that an argument gives name the argument and the path.

    A full disk is no fault of the path: see ``writing``.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        fault = f"{argument}={os.fspath(path)!r} can not be used: {os.strerror(error.errno or 0)}"
        raise OSError(error.errno, fault) from None


def write_durably(file: Path, text: str) -> None:
    """Replace a small file so that after a power cut either the old or the new one is there."""
    write_whole(file, text, synced=True)


def write_whole(file: Path, text: str, *, synced: bool) -> None:
    """Replace a small file so that either the old or the new one is there after a crash.

    Without ``synced`` that holds for a crash of the process, and not for a power cut.
    """
    part = file.with_name(file.name + ".part")
    with writing(file, len(text)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(part, flags, 0o666), "w") as written:
            written.write(text)
            written.flush()
            if synced:
                os.fsync(written.fileno())
        os.replace(part, file)
        if synced:
            sync_directory(file.parent)


def read_json(file: Path, parse: Callable[[Any], T], remedy: str = "") -> T | None:
    """Return what ``parse`` makes of a JSON file, and None where there is none."""
    try:
        return parse(json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ServerError(f"{file} is damaged: {error!r:.200}.  {remedy}".rstrip(" .")) from None


def whole(number: object) -> int:
    """Return a number of a JSON file, which somebody may have edited, if it counts something."""
    if type(number) is not int or not 0 <= number <= _MOST:
        raise ValueError(f"{number!r:.40} is no integer between 0 and {_MOST}")
    return number


def sync_directory(directory: Path) -> None:
    """Make sure that new and renamed files of a directory stay after a power cut."""
    with opened(directory, os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> Iterator[int]:
    """Yield a descriptor of a file, which only its user can read if it is made here."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opened_within(path: Path, flags: int) -> int:
    """Return a descriptor of a file, for its user alone if it is made here.

    OSError where the file or its directory is a symbolic link, which could lead anywhere.
    """
    unfollowed = os.O_NOFOLLOW | os.O_CLOEXEC
    directory = os.open(path.parent, os.O_DIRECTORY | unfollowed)
    try:
        return os.open(path.name, flags | unfollowed, 0o600, dir_fd=directory)
    except OSError as error:
        error.filename = str(path)  # it names the file within its directory
        raise
    finally:
        os.close(directory)


def refuse_links(directory: Path) -> None:
    """Raise ServerError where a symbolic link lies anywhere in a directory."""
    for place, directories, files in os.walk(directory):
        for path in (Path(place, name) for name in (*directories, *files)):
            if path.is_symlink():
                raise ServerError(
                    f"{path} is a symbolic link to {os.readlink(path)}: a server follows none in "
                    f"{directory}, so that it writes nowhere else.  Put what it leads to in its "
                    "place, or remove it"
                )


def held(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Return a descriptor with the flock of a file; BlockingIOError where another process has it.

    The kernel frees it if the process dies.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked(path: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the flock of a file.

    The file stays: removing it would let two processes hold it.  ``waits`` is called again and
    again while another process has the lock.
    """
    while True:
        with contextlib.suppress(BlockingIOError), writing(path):
            descriptor = held(path, os.O_RDWR | os.O_CREAT, 0o644)
            break
        waits()
        time.sleep(_TRY_S)
    try:
        yield
    finally:
        os.close(descriptor)
