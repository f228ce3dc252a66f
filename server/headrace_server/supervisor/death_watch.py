"""The thread of the supervisor that waits for the deaths of its children.

pidfds of the children ─┐
wake(): others to watch ├─► poll ─► on_death(child), one after the other
look_s have passed ─────┘       └─► look(), after every round
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait

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
        self._look_s = look_s
        self._ending = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # after a close its number may be another file's
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)

    def begin(self) -> None:
        """Start the thread."""
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Watch the children that live now.  Harmless after ``close``."""
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

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
            if self._wake >= 0:
                os.close(self._wake)
            self._wake = -1

    def _run(self) -> None:
        while True:
            children = {child.pidfd: child for child in self._children()}
            ready = wait([self._wake, *children], self._look_s)
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._ending:
                return
            for fd in children.keys() & ready:
                self._on_death(children[fd])
            self._look()
