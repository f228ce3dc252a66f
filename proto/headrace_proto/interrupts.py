"""Ctrl-C while a thread or a process is started, or a server is closed.

``threading.Thread.start`` waits until the new thread runs.  Ctrl-C ends that wait and not the
thread, which then runs on without an object that could end it.  So Ctrl-C is held back during such
a step.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let a Ctrl-C take effect when the block has ended; a second one takes effect at once.

    Python interrupts the main thread alone: in another thread this does nothing.
    """
    handle = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handle):
        yield
        return
    held: list[FrameType | None] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if not held:
            held.append(frame)
            return
        held.clear()
        handle(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handle)
        if held:
            handle(signal.SIGINT, held[0])


def start(thread: threading.Thread, close: Callable[[], object]) -> None:
    """Start a thread; where Ctrl-C comes meanwhile, ``close`` it before Ctrl-C takes effect."""
    try:
        with interrupts_held():
            thread.start()
    except BaseException:
        if thread.is_alive():
            close()
        raise
