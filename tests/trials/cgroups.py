"""Groups of processes with common limits of processor time and memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.patience import eventually

from .frame import NotHere

__all__ = ["cgroup"]

_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cgroup(controller: str, v1: Mapping[str, str], v2: Mapping[str, str]) -> Iterator[Path]:
    """Make a group with these settings, by the machine's version of cgroups; else raise NotHere."""
    old = _ROOT / controller
    first, settings = (old, v1) if old.is_dir() else (_ROOT, v2)
    group = first / f"headrace-trial-{time.monotonic_ns()}"
    try:
        group.mkdir()
        for name, value in settings.items():
            (group / name).write_text(value)
    except OSError as error:
        raise NotHere(f"no cgroup with a limit of {controller} can be made: {error}") from None
    try:
        yield group
    finally:
        with contextlib.suppress(AssertionError, OSError):
            eventually(lambda: not (group / "cgroup.procs").read_text())
            group.rmdir()
