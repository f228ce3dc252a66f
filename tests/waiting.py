"""Trainers that wait for less time than it may take them to connect."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from headrace.waits import Link


@contextlib.contextmanager
def waits_end_after(seconds: float) -> Iterator[None]:
    """End every wait of the trainers of this process after ``seconds`` at most.

    A feed that was connected with so short a ``timeout`` could fail to connect on a busy machine.
    """
    wait = Link.wait

    def short(
        link: Link, done: Callable[[], Any], timeout_s: float, *rest: Any, **named: Any
    ) -> Any:
        return wait(link, done, min(timeout_s, seconds), *rest, **named)

    with mock.patch.object(Link, "wait", short):
        yield
