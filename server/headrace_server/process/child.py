"""A child process and its parent: how they exchange messages, and how they end.

    parent ══ messages ══ child     the config (pickled), then orders; reports: ready, dying, …
    child ─── output ───► parent    all that it or its user code prints; the last lines are kept

Messages cross a pair of sockets, which is the lifeline: a thread of the child ends the child when
the parent has died, whatever the child does, so nothing is left behind when the parent is killed.
A process that the user's program forked has the parent's socket too, and keeps it; so the child
also compares its parent with the one that started it.  Children are new
programs, never forks: no thread, lock or socket of the parent is in them, and the user's main
script is not run again.

Processes that user code starts in a child may outlive it and hold its files open.  So the parent
shuts the messages down once the child is dead, and reads its output without waiting for the end.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import faulthandler
import json
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, ClassVar, TypeAlias

from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError

from ..pipeline.declaration import Plain

_LAST_WORDS = 80
_READ_BYTES = 1 << 16
_ORPHAN_CHECK_S = 0.5
#: Maximum time until a killed process has ended.
_END_S = 5.0
#: How long an end waits for the threads of a child.
_THREADS_S = 5.0
#: Maximum length of a line; a longer one is passed on in pieces, since a progress bar may never end
#: its line.
_LONGEST_LINE = 1 << 16
#: Signals that can reach all processes of a server at once: Ctrl-C, the stop of a service, and the
#: end of a terminal.
_TO_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Maximum bytes read after a child's death; a pipe holds 64 KiB, unless others still write.
_MOST_LEFT_BYTES = 1 << 20


#: Fields of an order or an event by name.  Handlers declare their types, see ``perform``.
Message: TypeAlias = Mapping[str, Any]


def perform(handlers: Mapping[str, Callable[..., None]], message: Message, *first: object) -> None:
    """Call the handler that an order or an event names with its fields.

    The keys and the signatures of ``handlers`` declare what one process understands of the other.
    ServerError where the name is not among them, TypeError where the fields are others.
    """
    fields = dict(message)
    name = fields.pop("order" if "order" in fields else "event", None)
    handler = handlers.get(name)
    if handler is None:
        raise ServerError(f"{name!r:.80} is none of {', '.join(handlers)}")
    handler(*first, **fields)


class Pipe:
    """The child's end: the locator or a worker gets orders by it, and reports.

    Make it first: it takes stdin away from user code that reads.
    """

    made: ClassVar[bool] = False  # whether this process is a child

    def __init__(self) -> None:
        Pipe.made = True
        self._parent = int(sys.argv.pop())
        self._connection = Connection(os.dup(0))
        self._reporting = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        faulthandler.enable()
        _leave_to_parent()
        threading.Thread(target=self._watch, name="headrace-lifeline", daemon=True).start()

    def read_config(self) -> Any:
        return pickle.loads(self._read())  # noqa: S301 - of the process that started this one

    def _read(self) -> bytes:
        """Return the next message; end the child where there is none any more."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)

    def fileno(self) -> int:
        """Return the file that is readable when orders have come."""
        return self._connection.fileno()

    def read_orders(self) -> Iterator[Message]:
        """Yield the orders that have arrived."""
        while self._connection.poll():
            yield json.loads(self._read())

    def report(self, event: str, **values: object) -> None:
        """Report an event to the supervisor."""
        data = json.dumps({"event": event, **values}).encode()
        with self._reporting, contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def _watch(self) -> None:
        """End this process when the parent has died."""
        end = select.poll()
        end.register(self._connection, 0)
        while os.getppid() == self._parent and not end.poll(1000 * _ORPHAN_CHECK_S):
            pass
        os._exit(0)


class Child:
    """The supervisor's end of one process: its events, and its last words.

    OSError where it can not be started; nothing of it is left then.
    """

    def __init__(
        self,
        module: str,
        name: str,
        config: object,
        on_event: Callable[[Child, Message], None],
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.reason = ""  # why it is dying, as it reported
        self._on_event = on_event
        self._connection, self._end = connection.Pipe()
        self._threads: list[threading.Thread] = []
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.configure(config)
        self.last_words: collections.deque[str] = collections.deque(maxlen=_LAST_WORDS)
        with contextlib.ExitStack() as undo, self._end:
            undo.callback(self._connection.close)
            with _blocked(_TO_GROUP):
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(os.getpid())],
                    stdin=self._end.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                )
            undo.push(self._process)  # which closes its pipe and reaps it
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        for action in (self._send, self._read_events, self._read_output):
            thread = threading.Thread(target=action, name=f"headrace-{name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no thread to spare
                self.kill()
                self.wait(_END_S)
                self.close()
                raise OSError(errno.EAGAIN, str(error)) from None
            self._threads.append(thread)

    def _send(self) -> None:
        """Send the config and orders; no other thread waits until the child reads them."""
        with contextlib.suppress(OSError):  # the child has died
            while (data := self._unsent.get()) is not None:
                self._connection.send_bytes(data)

    def _read_events(self) -> None:
        while True:
            try:
                event = json.loads(self._connection.recv_bytes())
            except (EOFError, OSError):  # the last may be half of one: it died amid this
                return
            if event["event"] == "dying":
                self.reason = event["text"]
                continue
            try:
                self._on_event(self, event)
            except Exception:
                self.kill()  # no other thread would read its reports
                raise

    def configure(self, config: object) -> None:
        """Send a config: its first one, or the one that it reads after that."""
        self._unsent.put(pickle.dumps(config))

    def order(self, **values: Plain) -> None:
        """Send one order; nothing happens where the child is gone."""
        self._unsent.put(json.dumps(values).encode())

    def _read_output(self) -> None:
        """Read its lines until their end, or until it is dead and they are read."""
        assert self._process.stdout
        fd = self._process.stdout.fileno()
        left, rest = _MOST_LEFT_BYTES, b""
        while left > 0 and fd in (ready := connection.wait([fd, self.pidfd])):
            data = os.read(fd, _READ_BYTES)
            if not data:
                break
            left -= len(data) if self.pidfd in ready else 0
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._print(lines)
        self._print([rest] if rest else [])

    def _print(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            self.last_words.append(text)
            # Even if our own stderr is closed or broken, read that of the child.
            with contextlib.suppress(OSError, ValueError):
                print(text, file=sys.stderr, flush=True)

    def words(self, lines: int = 25) -> str:
        """Return the last lines that it printed; after a crash, from the report of the crash on."""
        last = list(self.last_words)
        thread = "Current thread "
        for mark in ("Fatal Python error:", thread):
            if (at := _last(last, mark)) is not None:
                head, body = last[at], last[at + 1 :]
                return "\n".join([head, *body[_last(body, thread) or 0 :]][:lines])
        if (at := _last(last, "Traceback ")) is not None:
            last = last[at:]
            if len(last) > lines:  # its head identifies it, its end has the exception
                last = [last[0], "  ...", *last[2 - lines :]]
        return "\n".join(last[-lines:])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal that ends it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None when it still runs after the timeout."""

        def ended(at_most_s: float) -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(at_most_s)
            return self._process.returncode is not None

        Deadline(timeout_s).wait(ended)
        return self._process.returncode

    def close(self) -> bool:
        """Join the threads of a child that has died, and close its files; whether all ended."""
        self._unsent.put(None)
        end = socket.socket(fileno=self._connection.fileno())
        with contextlib.suppress(OSError):  # the child's is closed
            end.shutdown(socket.SHUT_RDWR)  # reports that have come can still be read
        end.detach()
        for thread in self._threads:
            Deadline(_THREADS_S).join(thread)
        if any(thread.is_alive() for thread in self._threads):
            return False  # one may wait for our own stderr, and closing under it would wait too
        self._connection.close()
        os.close(self.pidfd)
        assert self._process.stdout
        self._process.stdout.close()
        return True


def _leave_to_parent() -> None:
    """Outlive the signals that reach a whole group of processes: the parent decides their meaning.

    SIGTERM and SIGHUP end processes that user code starts: programs inherit no handler, and a fork
    gets the default again.  They can not come before that: the fork is made with them blocked.
    """
    ends = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup has set it, for all
        ends.append(signal.SIGHUP)
    masks = threading.local()  # threads may fork at the same time

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_GROUP)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def end_by_them() -> None:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
        restore()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ends:
        signal.signal(number, lambda number, frame: None)
        signal.siginterrupt(number, False)  # calls in C libraries go on
    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=end_by_them)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TO_GROUP)


@contextlib.contextmanager
def _blocked(signals: Iterable[int]) -> Iterator[None]:
    """Block signals: a child inherits the mask, and unblocks them once it outlives them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _last(lines: Sequence[str], mark: str) -> int | None:
    """Return the number of the last line that begins with a mark."""
    return max((i for i, line in enumerate(lines) if line.startswith(mark)), default=None)


def end(children: Sequence[Child], patience_s: float) -> None:
    """Wait for the ends of children; kill those that take longer than ``patience_s``."""
    if not patience_s:
        for child in children:
            child.kill()
    for child in children:
        if child.wait(patience_s or _END_S) is None:
            child.kill()
            child.wait(_END_S)
        child.close()


def environment() -> dict[str, str]:
    """Return the environment in which a child imports from the same path as this process."""
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
