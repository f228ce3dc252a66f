"""Deaths of real processes are noticed once each, until the watch ends."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_server.supervisor.crew import DeathWatch
from tests.patience import PATIENCE_S


class Process:
    """The part of a child that the watch uses."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pidfd = os.pidfd_open(self.process.pid)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    made = [Process(), Process()]
    yield made
    for one in made:
        one.end()
        os.close(one.pidfd)


def test_a_death_is_reported_once_and_none_after_the_end(processes: list[Any]):
    """1. One dies; 2. another is to be watched; 3. the watch ends, dies no more."""
    first, second = processes
    watched, dead = [first], queue.Queue[Any]()
    looks = threading.Semaphore(0)

    def on_death(child: Any) -> None:
        watched.remove(child)
        dead.put(child)

    watch = DeathWatch(lambda: list(watched), on_death, looks.release, 60.0)
    watch.begin()
    first.end()
    assert dead.get(timeout=PATIENCE_S) is first and looks.acquire(timeout=PATIENCE_S)
    watched.append(second)
    watch.wake()
    assert looks.acquire(timeout=PATIENCE_S)
    watch.end()
    second.end()
    assert dead.empty()
    watch.begin()
    assert dead.get(timeout=PATIENCE_S) is second
    watch.close()
    watch.wake()
    watch.close()


def test_it_looks_while_nobody_dies():
    looks = threading.Semaphore(0)
    watch = DeathWatch(list, lambda child: None, looks.release, 0.01)
    watch.begin()
    assert all(looks.acquire(timeout=PATIENCE_S) for _ in range(3))
    watch.close()
