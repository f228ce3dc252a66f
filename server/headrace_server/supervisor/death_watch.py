"""The thread of the supervisor that waits for the deaths of its children.

pidfds of the children ─┐
wake(): others to watch ├─► poll ─► on_death(child), one after the other
look_s have passed ─────┘       └─► look(), after every round
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Sequence

from ..process.child import Child


class DeathWatch:
    """Begun and ended any number of times, until ``close``."""

    def __init__(
        self,
        children: Callable[[], Sequence[Child]],
        on_death: Callable[[Child], None],
        look: Callable[[], None],
        look_s: float,
    ) -> None:
        self._children = children
        self._on_death = on_death
        self._look = look
        self._look_ms = int(look_s * 1000)
        self._ending = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # after a close the pipe's number may be another file's
        self._wake_r, self._wake_w = os.pipe()

    def begin(self) -> None:
        """Start the thread."""
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Watch the children that live now.  Harmless after ``close``."""
        with self._lock, contextlib.suppress(OSError):
            if self._wake_w >= 0:
                os.write(self._wake_w, b"x")

    def end(self) -> None:
        """Notice no death from now on; a death that was noticed is handled first."""
        self._ending = True
        self.wake()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the thread for good."""
        self.end()
        with self._lock:
            for fd in (self._wake_r, self._wake_w):
                if fd >= 0:
                    os.close(fd)
            self._wake_r = self._wake_w = -1

    def _run(self) -> None:
        while True:
            children = {child.pidfd: child for child in self._children()}
            poller = select.poll()  # select takes no number beyond 1023
            for fd in (self._wake_r, *children):
                poller.register(fd, select.POLLIN)
            readable = [fd for fd, _ in poller.poll(self._look_ms)]
            if self._wake_r in readable:
                os.read(self._wake_r, 4096)
            if self._ending:
                return
            for fd in readable:
                if fd in children:
                    self._on_death(children[fd])
            self._look()
