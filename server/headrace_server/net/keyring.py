"""The server's keys: its own secret, and the public keys of those that it lets in.

    DIR/server.secret            this server's, read once
    DIR/server.public            for trainers
    DIR/trainers/NAME.public     a trainer with the secret to it is let in, as NAME
    DIR/producers/NAME.public    and a producer of logs

The locator and the workers read these directories again and again: a key that is added lets its
owner in at once, and one that is removed ends its sessions.  A file there that can not be read lets
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

TRAINERS, PRODUCERS = "trainers", "producers"

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
        for home in (trainers, self.directory / PRODUCERS):
            if home.is_dir():
                _check_mode(home.stat(), str(home), home)
        self._seen: dict[str, tuple[_Seen, ...]] = {}
        #: By directory, names by public key.
        self._by_key: dict[str, dict[str, str]] = {TRAINERS: {}, PRODUCERS: {}}
        self.refresh()

    def name_of(self, key: str, right: str = TRAINERS) -> str | None:
        """Return the name of a public key; None where nobody with this right has it."""
        return self._by_key[right].get(key)

    def knows(self, key: str) -> bool:
        """Return whether somebody has this key."""
        return any(key in names for names in self._by_key.values())

    @property
    def names(self) -> list[str]:
        """The names of the trainers that are let in."""
        return sorted(set(self._by_key[TRAINERS].values()))

    def refresh(self) -> bool:
        """Read the keys again; return whether they have changed."""
        try:
            return any([self._refresh(right) for right in self._by_key])  # noqa: C419 - all of them
        except OSError as error:
            if not is_shortage(error):
                raise
            return False  # no key was removed: try again at the next look

    def _refresh(self, right: str) -> bool:
        """Read the files of the keys; return whether they have changed."""
        seen = tuple(sorted(self._look(right)))
        if seen == self._seen.get(right, ()):
            return False
        names: dict[str, str] = {}
        for name, *_ in seen:
            path = self.directory / right / name
            try:
                trainer = check_name("the name", name.removesuffix(PUBLIC))
                key = parse_public(_read(path), str(path))
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and is_shortage(error):
                    raise
                logger.warning("a key is not used: %s: %s", path, error)
                continue
            names.setdefault(key, trainer)
        before, self._by_key[right], self._seen[right] = self._by_key[right], names, seen
        return names != before

    def _look(self, right: str) -> Iterator[_Seen]:
        """Yield values that change when a file does.  Orchestrators swap the targets of links."""
        try:
            names = os.listdir(self.directory / right)
        except OSError as error:
            if is_shortage(error):
                raise
            if self._seen.get(right):  # else it was logged before
                logger.warning("no %s is let in: %s", right[:-1], error)
            return
        for name in names:
            if not name.endswith(PUBLIC):
                continue
            try:
                status = os.stat(self.directory / right / name)
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
