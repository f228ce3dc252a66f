"""The trainers for which a life of an owner waits before it hands anything out.

    join, leave ─► a note in the file ─► the next life reads it: these have batches in hand

It waits until each of them has greeted it or was refused, and for ``RETURN_S`` at most.  The file
is in the state directory, where there is one: then the next start of the server waits, too.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..core.end_of_feed import RETURN_S

#: Prefix of the file's name, before the number of the owner.
NAME = "trainers"
#: Maximum bytes of a nonce.
_NONCE = 64


class Returning:
    """The sessions of one owner by their nonces, noted for its next life."""

    def __init__(self, path: Path) -> None:
        """A file that can not be read or written counts as none: that life waits for nobody."""
        self._present: set[bytes] = set()
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text("ascii").split("\n")[:-1]:
                nonce = bytes.fromhex(line[1:])
                if line[0] == "+" and 0 < len(nonce) <= _NONCE:
                    self._present.add(nonce)
                else:
                    self._present.discard(nonce)
        self._awaited = set(self._present)
        self._give_up_at: float | None = None  # none before the feeds are open
        self._file: int | None = None
        with contextlib.suppress(OSError):
            path.write_text("".join(f"+{nonce.hex()}\n" for nonce in self._present))
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def opened(self, now: float) -> None:
        """Wait for a moment only from now on: the feeds are open."""
        self._give_up_at = now + RETURN_S

    def all_back(self, now: float) -> bool:
        """Return whether it waits for no trainer any more."""
        if self._awaited and self._give_up_at is not None and now >= self._give_up_at:
            for nonce in list(self._awaited):
                self.left(nonce)
        return not self._awaited

    def joined(self, nonce: bytes) -> None:
        """Note that a trainer has a session."""
        self._awaited.discard(nonce)
        if nonce not in self._present:
            self._present.add(nonce)
            self._note("+", nonce)

    def left(self, nonce: bytes) -> None:
        """Note that a trainer has no session any more, or was refused one."""
        self._awaited.discard(nonce)
        if nonce in self._present:
            self._present.discard(nonce)
            self._note("-", nonce)

    def _note(self, sign: str, nonce: bytes) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.write(self._file, f"{sign}{nonce.hex()}\n".encode())

    def close(self) -> None:
        """Close the file; it stays for the next life."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
