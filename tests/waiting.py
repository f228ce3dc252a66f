"""Waits of trainers that end before their timeout."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from headrace.connection.waiting import Waits
from headrace_proto.errors import ConnectionLost, DeadlineExceeded

from .patience import PATIENCE_S

_STEP_S = 0.05


@contextlib.contextmanager
def waits_end_after(seconds: float) -> Iterator[None]:
    """End every wait of the trainers of this process after ``seconds`` at most.

    A feed that was connected with so short a ``timeout`` could fail to connect on a busy machine.
    """
    wait = Waits.wait

    def short(
        waits: Waits, done: Callable[[], Any], timeout_s: float, *rest: Any, **named: Any
    ) -> Any:
        return wait(waits, done, min(timeout_s, seconds), *rest, **named)

    with mock.patch.object(Waits, "wait", short):
        yield


@contextlib.contextmanager
def waits_end_with(text: str) -> Iterator[None]:
    """End every wait of the trainers of this process as soon as its error would match a text.

    The reason of a wait comes with a message of the server, so no length of time is long enough.
    """
    wait = Waits.wait

    def stepwise(
        waits: Waits, done: Callable[[], Any], timeout_s: float, *rest: Any, **named: Any
    ) -> Any:
        deadline = time.monotonic() + min(timeout_s, PATIENCE_S)
        while True:
            try:
                return wait(waits, done, _STEP_S, *rest, **named)
            except (DeadlineExceeded, ConnectionLost) as error:
                if re.search(text, str(error)) or time.monotonic() > deadline:
                    raise

    with mock.patch.object(Waits, "wait", stepwise):
        yield
