"""Ctrl-C while a thread or a process is started, or a server is closed.

``threading.Thread.start`` waits until the new thread runs.  Ctrl-C ends that wait and not the
thread, which then runs on without an object that could end it.  So Ctrl-C is held back during such
a step, and so are SIGTERM and SIGHUP where the program handles them: its handler may raise, too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Let a signal take effect when the block has ended; a second one takes effect at once.

    Python interrupts the main thread alone: in another thread this does nothing.
    """
    found = {int(number): signal.getsignal(number) for number in _NUMBERS}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread():
        handlers.clear()
    held: list[tuple[int, FrameType | None]] = []

    def handle() -> None:
        while held:
            number, frame = held.pop(0)
            handlers[number](number, frame)

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            handle()

    for number in handlers:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        handle()


def start(thread: threading.Thread, close: Callable[[], object]) -> None:
    """Start a thread; where Ctrl-C comes meanwhile, ``close`` it before Ctrl-C takes effect."""
    try:
        with interrupts_held():
            thread.start()
    except BaseException:
        if thread.is_alive():
            close()
        raise
