"""The front or a worker in a thread of the calling process, behind the doors of a child process.

    supervisor ── order() ─► queue, eventfd ─► read_orders() of the front or the worker
               ◄─ on_event ◄── a thread that hands events on ◄── report()

No thread can be killed: ``kill`` ends one where it next looks for orders.  A function of the user
that never returns keeps its thread, and nothing else of the server, until the process ends.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import msgpack

from headrace_proto.clock import Deadline

logger = logging.getLogger("headrace.server")

#: How long a close waits for the thread that hands events on.
_THREADS_S = 5.0
#: How long a thread that was ended may take to notice it, unless a function of the user holds it.
_KILLED_S = 0.5


class ThreadEnded(BaseException):
    """The supervisor ends this thread, as it would kill a process."""


class ThreadPipe:
    """The thread's end, in place of a ``ParentPipe``."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._killed = False

    def fileno(self) -> int:
        """Return the file that is readable when orders have come."""
        return self._wake

    def read_orders(self) -> list[dict[str, Any]]:
        """Return the orders that have come.  Ended: none will follow."""
        os.eventfd_read(self._wake)
        self.check_parent()
        orders = []
        while not self._orders.empty():
            orders.append(json.loads(self._orders.get()))
        return orders

    def check_parent(self) -> None:
        """Raise Ended where the supervisor has ended this thread."""
        if self._killed:
            raise ThreadEnded

    def report(self, event: str, **values: Any) -> None:
        """Report an event to the supervisor."""
        self.events.put(json.dumps({"event": event, **values}))

    # The supervisor's end

    def order(self, values: Mapping[str, Any]) -> None:
        """Pass an order on, as the plain data that a process would read."""
        self._orders.put(json.dumps(values))
        os.eventfd_write(self._wake, 1)

    def kill(self) -> None:
        """End the thread where it next looks for orders."""
        self._killed = True
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        os.close(self._wake)


class InThread:
    """The supervisor's end, in place of a ``Child``: ``serve`` of a module runs in a thread."""

    def __init__(
        self,
        module: str,
        name: str,
        config: bytes,
        on_event: Callable[[Any, Mapping[str, Any]], None],
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.reason = ""  # why it has failed
        self.pid = os.getpid()
        self.pidfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable after its end
        self._pipe = ThreadPipe()
        self._on_event = on_event
        self._code: int | None = None
        self._closed = self._killed = False
        plain = msgpack.unpackb(config, strict_map_key=False)
        self._thread = self._started(self._run, module, plain)
        self._reporter = self._started(self._report)

    def _started(self, action: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(
            target=action, args=arguments, name=f"headrace-{self.name}", daemon=True
        )
        thread.start()
        return thread

    def _run(self, module: str, plain: Any) -> None:
        code = 1
        try:
            import_module(module).serve(plain, self._pipe)
            code = 0
        except ThreadEnded:
            code = -signal.SIGKILL
        except BaseException as error:
            self.reason = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            self._pipe.events.put(None)
            self._code = code
            os.eventfd_write(self.pidfd, 1)

    def _report(self) -> None:
        while (event := self._pipe.events.get()) is not None:
            try:
                self._on_event(self, json.loads(event))
            except Exception:
                self.kill()  # no other thread would hand its reports on
                raise

    def words(self, lines: int = 25) -> str:
        """Return nothing: what a thread prints is among what the process prints."""
        return ""

    def order(self, **values: Any) -> None:
        """Send one order; nothing happens where the thread has ended."""
        if not self._closed:
            self._pipe.order(values)

    def exit_code(self) -> int | None:
        """Return 0 after an end in order, another number after any other, None while it runs."""
        return self._code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the thread, whatever the signal, where it next looks for orders."""
        self._killed = True
        if not self._closed:
            self._pipe.kill()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None when it still runs after the timeout."""
        Deadline(min(timeout_s, _KILLED_S) if self._killed else timeout_s).join(self._thread)
        return self._code

    def close(self) -> None:
        """Join the threads, and close the files of one that has ended."""
        if self._thread.is_alive():
            logger.warning("%s ends when the function that it is in has returned", self.name)
            return
        Deadline(_THREADS_S).join(self._reporter)
        self._closed = True
        self._pipe.close()
        os.close(self.pidfd)
