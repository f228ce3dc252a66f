"""The front or a worker in a thread of the calling process, with the interface of a child process.

No thread can be killed: ``kill`` ends one where it next looks for orders.  A function of the user
that never returns keeps its thread, and nothing else of the server, until the process ends.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from headrace_proto.clock import Deadline

from .child import Child, Pipe
from .sockets import EXPECTED

logger = logging.getLogger("headrace.server")

#: Maximum time until an ended thread notices it, unless it is in a user function.
_KILLED_S = 0.5


class ThreadEnded(BaseException):
    """The supervisor ends this thread, as it would kill a process."""


class ThreadPipe(Pipe):
    """The thread's end."""

    killed = False

    def check_parent(self) -> None:
        """Raise ThreadEnded where the supervisor has ended this thread."""
        if self.killed:
            raise ThreadEnded

    def close(self) -> None:
        """Close the connection, which ends what the supervisor reads."""
        self._connection.close()


class InThread(Child):
    """A thread in which ``serve`` of a module runs."""

    def __init__(
        self,
        module: str,
        name: str,
        config: bytes,
        on_event: Callable[[Any, Mapping[str, Any]], None],
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(name, config, on_event)
        self.pid = os.getpid()
        self._pipe = ThreadPipe(self._end)
        self.pidfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._code: int | None = None
        try:
            self._start(self._send)
            self._start(self._read_events)
            self._start(self._run, module)
        except RuntimeError as error:  # the system has no thread to spare
            self._unsent.put(None)
            self._pipe.close()
            os.close(self.pidfd)
            raise OSError(errno.EAGAIN, str(error)) from None

    def _run(self, module: str) -> None:
        code = 1
        try:
            import_module(module).serve(self._pipe.read_config(), self._pipe)
            code = 0
        except ThreadEnded:
            code = -signal.SIGKILL
        except BaseException as error:
            expected = isinstance(error, EXPECTED)
            self.reason = f"{error}" if expected else f"{type(error).__name__}: {error}"
            if not (expected or self._pipe.killed):  # else what it used is being closed, too
                traceback.print_exc()
        finally:
            self._pipe.close()
            self._unsent.put(None)
            self._code = code
            os.eventfd_write(self.pidfd, 1)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the thread, whatever the signal, where it next looks for orders."""
        self._pipe.killed = True
        self._unsent.put(b"")  # which wakes it

    def wait(self, timeout_s: float) -> int | None:
        most_s = min(timeout_s, _KILLED_S) if self._pipe.killed else timeout_s
        Deadline(most_s).join(self._threads[-1])
        return self._code

    def close(self) -> bool:
        if self._threads[-1].is_alive():
            self._pipe.let_go()
            logger.warning("%s ends when the function that it is in has returned", self.name)
            return False
        return super().close()
