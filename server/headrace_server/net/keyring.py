"""The server's keys: its own secret, and the public keys of the trainers that it lets in.

    DIR/server.secret            this server's, read once
    DIR/server.public            for trainers
    DIR/trainers/NAME.public     a trainer with the secret to it is let in, as NAME

The locator and the workers read ``trainers`` again and again: a key that is added lets its trainer
in at once, and one that is removed ends its sessions.  A file there that can not be read lets
nobody in, and affects no other key.  Only regular files are opened: a pipe would wait for its
writer, and the server with it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import zmq

from headrace_proto.keys import (
    PUBLIC,
    SECRET,
    SERVER,
    Secret,
    check_name,
    fault_of_mode,
    parse_public,
    parse_secret,
)

from .sockets import is_shortage

TRAINERS = "trainers"

logger = logging.getLogger("headrace.trainers")

#: Maximum bytes of a key's file, which holds three lines.
_MOST_BYTES = 4096
_Seen = tuple[str, int, int, int]


class KeyRing:
    """The keys in one directory.  ValueError describes a fault of them."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        if not zmq.has("curve"):
            raise ValueError(f"keys={str(directory)!r}: this build of ZeroMQ has no CURVE")
        if not self.directory.is_dir():
            raise ValueError(f"keys={str(directory)!r} is no directory: headrace keygen makes it")
        _check_mode(self.directory.stat(), f"keys={str(directory)!r}", self.directory)
        path = self.directory / (SERVER + SECRET)
        if not path.is_file():
            raise ValueError(
                f"keys={str(directory)!r} has no {path.name}: headrace keygen {directory} makes it"
            )
        self.secret: Secret = parse_secret(_read(path, secret=True), str(path))
        trainers = self.directory / TRAINERS
        if not trainers.is_dir():
            raise ValueError(f"keys={str(directory)!r} has no directory {TRAINERS}")
        _check_mode(trainers.stat(), str(trainers), trainers)
        self._seen: tuple[_Seen, ...] = ()
        self.by_key: dict[str, str] = {}  # names by public key
        self.refresh()

    def name_of(self, key: str) -> str | None:
        """Return the name of a public key; None where no trainer has this key."""
        return self.by_key.get(key)

    @property
    def names(self) -> list[str]:
        """The names that are let in."""
        return sorted(set(self.by_key.values()))

    def refresh(self) -> bool:
        """Read the trainers' keys again; return whether they have changed."""
        try:
            seen = tuple(sorted(self._look()))
            return seen != self._seen and self._take(seen)
        except OSError as error:
            if not is_shortage(error):
                raise
            return False  # no key was removed: try again at the next look

    def _take(self, seen: tuple[_Seen, ...]) -> bool:
        """Read the files of the keys; return whether they have changed."""
        names: dict[str, str] = {}
        for name, *_ in seen:
            path = self.directory / TRAINERS / name
            try:
                trainer = check_name("the name", name.removesuffix(PUBLIC))
                key = parse_public(_read(path), str(path))
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and is_shortage(error):
                    raise
                logger.warning("a trainer's key is not used: %s: %s", path, error)
                continue
            names.setdefault(key, trainer)
        before, self.by_key, self._seen = self.by_key, names, seen
        return names != before

    def _look(self) -> Iterator[_Seen]:
        """Yield values that change when a file does.  Orchestrators swap the targets of links."""
        try:
            names = os.listdir(self.directory / TRAINERS)
        except OSError as error:
            if is_shortage(error):
                raise
            if self._seen:  # else it was logged before
                logger.warning("no trainer is let in: %s", error)
            return
        for name in names:
            if not name.endswith(PUBLIC):
                continue
            try:
                status = os.stat(self.directory / TRAINERS / name)
            except OSError as error:  # removed at this moment
                if is_shortage(error):
                    raise
                continue
            yield name, status.st_mtime_ns, status.st_size, status.st_ino


def _check_mode(status: os.stat_result, where: str, path: Path, secret: bool = False) -> None:
    fault = fault_of_mode(status.st_mode, secret)
    if fault:
        raise ValueError(f"{where} {fault} {path}")


def _read(path: Path, secret: bool = False) -> str:
    """Return the text of a key's file.  ValueError: it is no regular file, or has another mode."""
    with open(path, encoding="ascii", errors="replace", opener=_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is no regular file")
        _check_mode(status, str(path), path, secret)
        return file.read(_MOST_BYTES)


def _at_once(path: str, flags: int) -> int:
    """Open a file without a wait for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
