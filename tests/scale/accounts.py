"""The resources that processes have used, by the kernel's accounts."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MB", "cpu_s", "memory_mb"]

MB = 2**20


def cpu_s(pid: int) -> float:
    """Seconds on a core of all threads that live, to the nanosecond."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((thread / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return total / 1e9


def memory_mb(pid: int) -> float:
    """Return the memory of a process, without that of mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    told = {line.split()[0]: int(line.split()[1]) for line in status.splitlines() if " kB" in line}
    return told["RssAnon:"] / 1024
