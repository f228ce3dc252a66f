"""An interpreter that has imported a server's modules; each process of a test is a fork of it.

    test process ──order, its pipes──► nursery ──fork──► (fork, exit) ──► locator or worker
         ▲                                                                      │
         └──────────── becomes its parent: a subreaper adopts orphans ──────────┘

A process of a server takes a third of a second of a processor to start, nearly all of it for
imports, and the tests start more than a thousand.  The nursery has no thread.  To a test its
processes are as those started anew: direct children with their own pipes, environment, paths,
limits, signal mask and directory; but their command line is the nursery's, and they end without
taking their interpreter apart.  ``WarmPopen`` starts a test's own Python programs so; those that
serve, as the command line does, get a nursery of their own.  A program that names its ``imports``
(TensorFlow takes seconds) is forked from a second nursery, which keeps all that was ever named.
Where COLD=1 is in the environment all start as those of users do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.patience import PATIENCE_S, TRAINING_PATIENCE_S

_SERVERS = ("headrace_server.server.locator", "headrace_server.worker.worker")
_CLI = "headrace_server.cli"
_ROOT = Path(__file__).resolve().parents[1]
_IMPORTED = (*_SERVERS, f"{_CLI}.serve", "headrace.connecting")
_PR_SET_CHILD_SUBREAPER = 36
_LARGEST_ORDER = 1 << 20
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class Nursery:
    """The end of the tests."""

    _lock = threading.Lock()  # of all nurseries: a process adopts orphans, or it does not

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pids(self) -> set[int]:
        return set() if self._process is None else {self._process.pid}

    def fork(self, order: dict[str, Any], fds: list[int]) -> int:
        """Have a process forked, which is a child of this one; its number.

        It begins when no orphan is adopted any more: one of its own would be.
        """
        held, holds = os.pipe()
        with self._lock, open(holds, "wb"):
            if self._socket is None:
                self._start()
            assert self._socket is not None
            with open(held, "rb"), _adopting():
                socket.send_fds(self._socket, [json.dumps(order).encode()], [*fds, held])
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
                cwd=_ROOT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork would have none of them
            )

    def take_over(self, own: socket.socket) -> None:
        """Use the socket of a process that serves already."""
        self._socket = own

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = self._process = None


NURSERY = Nursery()
#: Its forks have frameworks, of which no thread has begun.
FRAMEWORKS = Nursery()


@contextlib.contextmanager
def _adopting() -> Any:
    """Orphans of this process's descendants become its children meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class WarmPopen(subprocess.Popen[Any]):
    """Popen that forks the nursery for a Python program, if nothing special is asked for."""

    def __init__(
        self,
        args: Any,
        *rest: Any,
        imports: Sequence[str] = (),
        serves: bool = False,
        **options: Any,
    ) -> None:
        self._imports, self._serves = list(imports), serves
        super().__init__(args, *rest, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        preexec, pass_fds, cwd, environment, pipes = rest[1], rest[3], rest[4], rest[5], rest[9:15]
        if os.environ.get("COLD") or preexec or pass_fds or not self._is_known(args):
            super()._execute_child(args, *rest)
            return
        order = {
            "program": [os.fspath(word) for word in args[1:]],
            "environment": dict(os.environ if environment is None else environment),
            "imports": self._imports,
            "serves": self._serves or _CLI in args[:4],
            "parent": os.getpid(),
            "cwd": os.path.abspath(cwd or os.getcwd()),
            "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            "limits": [resource.getrlimit(limit) for limit in _LIMITS],
        }
        ends = zip((pipes[0], pipes[3], pipes[5]), (0, 1, 2), strict=True)
        try:
            nursery = FRAMEWORKS if self._imports else NURSERY
            self.pid = nursery.fork(order, [own if end == -1 else end for end, own in ends])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)

    def _is_known(self, args: Any) -> bool:
        """Whether a command is python with ``-m``, ``-c`` or a file, and at most ``-P`` before."""
        return (
            isinstance(args, list)
            and args[0] == sys.executable
            and (args[1] in ("-m", "-c", "-P") or os.fspath(args[1]).endswith(".py"))
        )


class _ServerPopen(WarmPopen):
    """The ``Popen`` of a supervisor: only a locator or a worker comes from the nursery."""

    def _is_known(self, args: Any) -> bool:
        return args[:2] == [sys.executable, "-m"] and args[2] in _SERVERS


def environment(**more: str) -> dict[str, str]:
    """The environment of a program that runs in another directory and imports as this one does."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, **more}


def warm_run(
    *program: str | Path,
    cwd: Path | None = None,
    imports: Sequence[str] = (),
    timeout_s: float | None = None,
    serves: bool = False,
    text: str | None = None,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end, and capture what it prints.

    ``text`` is its input, and ``more`` of its environment.  One that ``serves`` has a nursery.
    """
    command = [sys.executable, *map(str, program)]
    options = {"cwd": cwd, "imports": imports, "serves": serves, "env": environment(**more)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes["stdin"] = None if text is None else subprocess.PIPE
    if timeout_s is None:
        timeout_s = TRAINING_PATIENCE_S if imports else PATIENCE_S
    with WarmPopen(command, **pipes, **options) as process:
        try:
            out, err = process.communicate(text, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def warm_starts() -> None:
    """From here on processes of servers of this process come from the nursery."""
    child = importlib.import_module("headrace_server.process.child")
    child.subprocess = SimpleNamespace(
        Popen=_ServerPopen,
        PIPE=subprocess.PIPE,
        STDOUT=subprocess.STDOUT,
        TimeoutExpired=subprocess.TimeoutExpired,
    )


def _main() -> None:
    sys.modules["tests.nursery"] = sys.modules["__main__"]
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection of a fork would copy every page of what was imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    born = _serve(socket.socket(fileno=int(sys.argv[1])))
    if born is not None:
        _become(*born)


def _serve(asking: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork as is asked; the order and the pipes in the fork, None at the end."""
    nursery = os.getpid()
    with asking:
        while True:
            data, fds, _, _ = socket.recv_fds(asking, _LARGEST_ORDER, 4)
            if not data:
                return None
            order = json.loads(data)
            for module in order["imports"]:
                importlib.import_module(module)
            try:
                pid = _orphan()
            except OSError as error:
                asking.send(json.dumps({"errno": error.errno}).encode())
                continue
            finally:
                if os.getpid() == nursery:
                    for fd in fds:
                        os.close(fd)
            if pid == 0:
                return order, fds
            asking.send(json.dumps({"pid": pid}).encode())


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
    """This process is the program from here to its end."""
    *fds, held = fds
    os.read(held, 1)  # nothing, at the end of the adoption
    if os.getppid() != order["parent"]:
        os._exit(1)
    for fd, standard in zip(fds, (0, 1, 2), strict=True):
        os.dup2(fd, standard)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for limit, values in zip(_LIMITS, order["limits"], strict=True):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, values)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["mask"])
    os.chdir(order["cwd"])
    own = {"", str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    os.environ.clear()
    os.environ.update(order["environment"])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(entry for entry in sys.path if entry not in {*paths, *own})]
    if order["serves"]:
        _nurse_itself()
    code = _outcome(order["program"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _outcome(words: list[str]) -> int:
    """Run a program to its end; its exit code."""
    safe = words[0] == "-P"
    kind, *arguments = words[safe:]
    if not safe and "PYTHONSAFEPATH" not in os.environ:
        sys.path.insert(0, _place(kind))
    try:
        if kind == "-m" and arguments[0] in _SERVERS:
            module = importlib.import_module(arguments[0])
            sys.argv = [str(module.__file__), *arguments[1:]]
            module.main()
        elif kind == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = ["-c", *arguments[1:]]
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(compile(arguments[0], "<string>", "exec"), vars(module))
        else:
            sys.argv = [kind, *arguments]
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        return 1
    return 0


def _place(kind: str) -> str:
    """The directory from which a program imports first."""
    return os.getcwd() if kind in ("-m", "-c") else os.path.dirname(os.path.abspath(kind))


def _nurse_itself() -> None:
    """A nursery of this process, forked from it before it has threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_ORDER)
    if os.fork():
        theirs.close()
        NURSERY.take_over(ours)
        warm_starts()
        return
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    born = _serve(theirs)
    if born is None:
        os._exit(0)
    _become(*born)


if __name__ == "__main__":
    _main()
