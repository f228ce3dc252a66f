"""The run directory: all files of one server in shared memory.

    /dev/shm/headrace-<uid>-<pid>-<id>/    mode 0700
        lock                           held by flock as long as the server lives
        diary-<worker>                 what a worker does
        source/                        modules of functions that are given by their source text
        index/                         indexes of files, where there is no state directory
        slab-<worker>-<life>           its memory of batches
        journals/feeds/NAME/           where there is no state directory
        channels-<worker>              the socket of trainers of this host
        trainer-<session>-<life>       16 random bytes; a trainer on this host holds a shared flock.
                                       Then buffers for the states that it saves, where it has any

A flock ends with its process, even if that is killed.  So a directory whose lock is free, or is
removed already, belongs to a server that is gone, and the next start on this machine removes it.
A directory has a dot before its name until it has its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from pathlib import Path

from ..files.durable_file import held, opened, usable, writing

_PREFIX = "headrace"
#: Age of a directory without its final name from which on its start is dead: it takes milliseconds.
_DRAFT_S = 3600.0
#: Advice in the error of full shared memory.
MORE_SHARED_MEMORY = (
    "make it larger (in a container: --shm-size), or let shared memory lie elsewhere (shm_dir)"
)


def _parent(shm_dir: str | os.PathLike[str] | None) -> Path:
    if shm_dir is not None:
        return Path(shm_dir)
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))


def is_locked(path: Path) -> bool:
    """Return whether a living process holds a lock on the file."""
    with contextlib.suppress(FileNotFoundError), opened(path, os.O_RDWR) as fd:
        return is_held(fd)
    return False


def is_held(fd: int) -> bool:
    """Return whether a lock on this open file is held through another opening of it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is held, or the kernel can not tell now
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def sweep(parent: Path) -> list[Path]:
    """Remove this user's run directories whose server has ended; return those removed."""
    removed = []
    ours = re.compile(rf"\.?{_PREFIX}-{os.getuid()}-[0-9]+-[0-9a-f]{{8}}")
    for path in parent.glob(f"*{_PREFIX}-{os.getuid()}-*"):
        try:
            if not ours.fullmatch(path.name) or path.lstat().st_uid != os.getuid():
                continue
            if path.name.startswith(".") and time.time() - path.lstat().st_mtime < _DRAFT_S:
                continue
            if is_locked(path / "lock"):
                continue
        except OSError:  # another start sweeps at the same time
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


class RunDirectory:
    """A run directory that this process owns until ``close``."""

    def __init__(self, shm_dir: str | os.PathLike[str] | None = None) -> None:
        # absolute, for trainers with other working directories
        parent = _parent(shm_dir).absolute()
        if not parent.is_dir():
            raise ValueError(f"shm_dir={str(parent)!r} is not a directory")
        # A directory gets its final name only after its lock is held: a sweep never sees it free.
        name = f"{_PREFIX}-{os.getuid()}-{os.getpid()}-{secrets.token_hex(4)}"
        sweep(parent)
        draft = parent / f".{name}"
        with usable("shm_dir", parent), writing(draft, remedy=MORE_SHARED_MEMORY):
            draft.mkdir(mode=0o700)
            try:
                self._fd = held(draft / "lock", os.O_CREAT | os.O_RDWR)
            except OSError:
                (draft / "lock").unlink(missing_ok=True)
                draft.rmdir()
                raise
        self.path = parent / name
        draft.rename(self.path)
        self._pid = os.getpid()

    def close(self) -> None:
        """Remove the directory.  Mappings that trainers still have stay valid.

        Nothing happens in a forked child of its owner: the directory is not the child's.
        """
        if os.getpid() != self._pid:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)
