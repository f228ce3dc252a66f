"""Time limits of tests that wait for an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Bounds every wait for an event.  A test that passes does not wait for it; a machine that is busy
#: with other work takes ten times as long as one that is not.
PATIENCE_S = 60.0
#: Bounds waits for programs that import a framework and train with it: several of them take
#: twenty seconds of a processor, and share it with other tests.
TRAINING_PATIENCE_S = 240.0


def eventually(condition: Callable[[], T]) -> T:
    """Wait, by polling, until a condition holds; return its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it never came true: {found!r}"
        time.sleep(0.01)
    return found
