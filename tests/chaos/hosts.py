"""Hosts on one machine: network namespaces with addresses and shared memory of their own.

    host 0: eth0 10.99.0.2, /dev/shm ── port 0 ┐
    host 1: eth0 10.99.0.3, /dev/shm ── port 1 ┼── bridge, in a namespace of its own
    host 2: …                        ── port 2 ┘

A namespace lives as long as a process is in it: a shell that waits for the end of this one's pipe,
and the processes that ``inside`` starts.  So nothing of it is left however a run ends.  A cut link
loses what it carries, and no end is told of it; a slow one has a small rate.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

__all__ = ["Host", "Network", "why_not"]

_NEEDS = ("ip", "tc", "unshare", "nsenter", "mount")
#: Runs until the standard input ends, after its word that it is ready.
_STAY = "ip link set lo up && {more} && echo ready && exec cat"
_NOT_SHARED = "mount -t tmpfs none /dev/shm"
_SLOW = "tbf rate 300kbit burst 4kb latency 300ms"
_LOST = "bfifo limit 1"  # a queue that no packet fits in


class Host:
    """One host: how to start processes on it, and its link."""

    def __init__(self, number: int, switch: int) -> None:
        self._holder = _held("--net", "--mount", more=_NOT_SHARED)
        self._switch, self._port = switch, f"port{number}"
        self.ip = f"10.99.0.{number + 2}"
        self._in_switch(f"ip link add {self._port} type veth peer name eth0 netns {self.pid}")
        self._in_switch(f"ip link set {self._port} master bridge up")
        self._here(f"ip addr add {self.ip}/24 dev eth0", "ip link set eth0 up")

    @property
    def pid(self) -> int:
        """The number of a process on the host."""
        return self._holder.pid

    @property
    def inside(self) -> list[str]:
        """The prefix of a command that runs on the host."""
        return ["nsenter", "-t", str(self.pid), "--net", "--mount", "--"]

    @property
    def memory(self) -> Path:
        """The host's shared memory, as this process sees it."""
        return Path(f"/proc/{self.pid}/root/dev/shm")

    def cut(self) -> None:
        """Drop the packets of both directions until ``heal``, as when a cable is pulled out."""
        self._in_switch(f"ip link set {self._port} down")

    def drop(self, way: str) -> None:
        """Drop the packets of one direction until ``heal``: "up" from the host, or "down" to it."""
        self._shape(_LOST, way)

    def slow(self) -> None:
        """Limit the rate until ``heal``."""
        self._shape(_SLOW, "up")
        self._shape(_SLOW, "down")

    def heal(self) -> None:
        self._in_switch(f"ip link set {self._port} up")
        for run, device in ((self._here, "eth0"), (self._in_switch, self._port)):
            with contextlib.suppress(subprocess.CalledProcessError):  # as it was
                run(f"tc qdisc del dev {device} root")

    def close(self) -> None:
        _end(self._holder)

    def _shape(self, how: str, way: str) -> None:
        run, device = (self._here, "eth0") if way == "up" else (self._in_switch, self._port)
        run(f"tc qdisc replace dev {device} root {how}")

    def _here(self, *commands: str) -> None:
        _run(self.pid, *commands)

    def _in_switch(self, *commands: str) -> None:
        _run(self._switch, *commands)


class Network:
    """Hosts that reach each other; this process is on none of them."""

    def __init__(self, hosts: int) -> None:
        self._switch = _held(
            "--net", more="ip link add bridge type bridge && ip link set bridge up"
        )
        self.hosts: list[Host] = []
        try:
            for number in range(hosts):
                self.hosts.append(Host(number, self._switch.pid))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        _end(self._switch)


def why_not() -> str:
    """Return why there can be no network of hosts here; "" where there can."""
    if os.geteuid():
        return "hosts with addresses of their own need root"
    lacking = [name for name in _NEEDS if shutil.which(name) is None]
    if lacking:
        return f"hosts with addresses of their own need {', '.join(lacking)}"
    try:
        with Network(1) as network:
            network.hosts[0].slow()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        return f"this machine makes no hosts with addresses of their own: {told.strip()}"
    return ""


def _held(*kinds: str, more: str) -> subprocess.Popen[str]:
    """A process in namespaces of its own, which ends with this process."""
    process = subprocess.Popen(
        ["unshare", *kinds, "sh", "-c", _STAY.format(more=more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    if process.stdout.readline() != "ready\n":
        told = process.stderr.read()
        _end(process)
        raise RuntimeError(told)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _run(pid: int, *commands: str) -> None:
    """Run commands in a network namespace."""
    for command in commands:
        inside = ["nsenter", "-t", str(pid), "--net", "--", *command.split()]
        subprocess.run(inside, check=True, capture_output=True, text=True)
