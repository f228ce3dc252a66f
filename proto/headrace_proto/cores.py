"""How many cores this process may use at a time: its affinity, and the quotas of its cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cores(root: Path = _ROOT, own: Path = _OWN) -> float:
    """Return the number of cores by affinity, or by a lower CPU quota of a cgroup."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(root, own)])


def _quotas(root: Path, own: Path) -> Iterator[float]:
    """Yield the visible quotas, in cores, of this process's cgroup and of all above it.

    In a container ``own`` may name a path of the host that does not exist: then the root is used.
    """
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2
                top = root
            elif "cpu" in controllers.split(","):
                top = root / "cpu"
            else:
                continue
            at = top / path.lstrip("/")
            for directory in (at, *at.parents):
                if directory == top or top in directory.parents:
                    yield from _quota(directory)


def _quota(directory: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (directory / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota = (directory / "cpu.cfs_quota_us").read_text()
        if int(quota) > 0:
            yield int(quota) / int((directory / "cpu.cfs_period_us").read_text())
