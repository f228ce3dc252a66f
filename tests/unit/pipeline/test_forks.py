"""A child that user code forks ends where that code returns, and does no harm before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace_server.pipeline import forks
from headrace_server.pipeline.forks import OwnProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def forked() -> int:
    """Return the child's number in the parent; in the child 0, or the error that was raised."""
    return os.fork()


def forked_and_left() -> int:
    pid = os.fork()
    if not pid:
        sys.exit(7)
    return pid


def forked_and_ended() -> int:
    pid = os.fork()
    if not pid:
        os._exit(9)
    return pid


@pytest.mark.parametrize(
    ("call", "code"), [(forked, 1), (forked_and_left, 1), (forked_and_ended, 9)]
)
def test_only_the_process_that_forked_leaves_the_context(call, code, capfd):
    try:
        with OwnProcess():
            pid = call()
    except BaseException:
        pid = 0
    if not pid:
        os._exit(42)  # it came back
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert (f"process {pid} was forked in user code" in capfd.readouterr().err) is (code == 1)


def test_a_child_has_no_hold_of_what_it_is_not_to_touch(monkeypatch):
    handlers: list[Callable[[], Any]] = []
    monkeypatch.setattr(
        forks.os, "register_at_fork", lambda *, after_in_child: handlers.append(after_in_child)
    )
    ours, theirs = os.pipe()
    forks.let_go_in_children(lambda: [theirs])
    pid = os.fork()
    if not pid:
        handlers[0]()
        os.write(theirs, b"a word of the child")
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(theirs, b"ours")
    os.close(theirs)
    assert os.read(ours, 100) == b"ours"
    os.close(ours)
