"""An interpreter that has imported a server's processes, and is forked for each that a test starts.

    test process ──order, its pipes──► nursery ──fork──► (fork, exit) ──► router or worker
         ▲                                                                      │
         └──────────── becomes its parent: a subreaper adopts orphans ──────────┘

A process of a server takes a third of a second of a processor to start, nearly all of it for
imports, and the tests start more than a thousand.  The nursery has no thread.  To a test its
processes are as those started anew: direct children with their own pipes, environment, paths,
limits, signal mask and directory.  Servers of the command line, and all where COLD=1 is in the
environment, start as those of users do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

MODULES = ("headrace_server.shell.router", "headrace_server.shell.worker")
_PR_SET_CHILD_SUBREAPER = 36
_LARGEST_ORDER = 1 << 20
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Nursery:
    """The end of the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pids(self) -> set[int]:
        return set() if self._process is None else {self._process.pid}

    def fork(self, order: dict[str, Any], fds: list[int]) -> int:
        """Have a process forked, which is a child of this one; its number."""
        with self._lock:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            with _adopting():
                socket.send_fds(self._socket, [json.dumps(order).encode()], fds)
                answer = json.loads(self._socket.recv(_LARGEST_ORDER))
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return int(answer["pid"])

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_ORDER)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "OPENBLAS_NUM_THREADS": "1",  # of its threads a fork would have none
                },
            )

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = self._process = None


NURSERY = Nursery()


@contextlib.contextmanager
def _adopting() -> Any:
    """Orphans of this process's descendants become its children meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class ForkedPopen(subprocess.Popen[Any]):
    """Popen that forks the nursery where that has imported the module."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        if args[:2] != [sys.executable, "-m"] or args[2] not in MODULES:
            super()._execute_child(args, *rest)
            return
        environment, pipes = rest[5], rest[9:15]
        order = {
            "module": args[2],
            "arguments": args[3:],
            "environment": environment,
            "parent": os.getpid(),
            "cwd": os.getcwd(),
            "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "limits": [resource.getrlimit(limit) for limit in _LIMITS],
        }
        try:
            self.pid = NURSERY.fork(order, [pipes[0], pipes[3], pipes[5]])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)


def warm_starts() -> None:
    """From here on processes of servers of this process come from the nursery."""
    child = importlib.import_module("headrace_server.shell.child")
    child.subprocess = SimpleNamespace(
        Popen=ForkedPopen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )


def _main() -> None:
    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        while True:
            data, fds, _, _ = socket.recv_fds(asking, _LARGEST_ORDER, 3)
            if not data:
                return
            order = json.loads(data)
            try:
                pid = _orphan()
            except OSError as error:
                asking.send(json.dumps({"errno": error.errno}).encode())
                continue
            finally:
                if os.getpid() == _NURSERY:
                    for fd in fds:
                        os.close(fd)
            if pid == 0:
                break
            asking.send(json.dumps({"pid": pid}).encode())
    _become(order, fds)


_NURSERY = os.getpid()


def _orphan() -> int:
    """Fork a process whose parent has ended; its number, and 0 in itself."""
    told, tells = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(told)
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            os.close(tells)
            return 0
        os.write(tells, str(pid).encode())
        os._exit(0)
    os.close(tells)
    with open(told) as answer:
        os.waitpid(between, 0)
        pid = int(answer.read())
    if pid < 0:
        raise OSError(-pid, os.strerror(-pid))
    return pid


def _become(order: dict[str, Any], fds: list[int]) -> None:
    """This process is the module's from here to its end."""
    while os.getppid() != order["parent"]:
        if not os.path.exists(f"/proc/{order['parent']}"):
            os._exit(1)
        time.sleep(0.0005)
    for fd, standard in zip(fds, (0, 1, 2), strict=True):
        os.dup2(fd, standard)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for limit, values in zip(_LIMITS, order["limits"], strict=True):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, values)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["mask"])
    os.chdir(order["cwd"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(order["environment"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*paths, *(entry for entry in sys.path if entry not in {*paths, *own, ""})]
    module = importlib.import_module(order["module"])
    sys.argv = [str(module.__file__), *order["arguments"]]
    module.main()


if __name__ == "__main__":
    _main()
