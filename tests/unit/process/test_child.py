"""A child and its parent, as real processes: their messages, and the end of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace_proto.errors import ServerError
from headrace_server.process.child import _TO_GROUP, Child, perform
from tests.children import gone
from tests.patience import PATIENCE_S

#: What the children of these tests run: a function by the name of their first argument.
CHILDREN = '''
import ctypes, multiprocessing, os, signal, subprocess, sys, time
from headrace_server.process.child import Pipe


def echo(pipe, config):
    pipe.report("ready")
    while True:
        for order in pipe.read_orders():
            pipe.report("heard", **order)


def watch(pipe, config):
    pipe.report("ready", made=Pipe.made)
    time.sleep(600)


def late(pipe, config):
    time.sleep(600)


def kept(pipe, config):
    time.sleep(600)


def crash(pipe, config):
    print("something before", file=sys.stderr)
    ctypes.string_at(0)


def chatter(pipe, config):
    for i in range(20_000):
        print("line", i, "x" * 80)
    sys.stdout.write("\\rprogress" * 100_000)
    sys.stdout.flush()
    pipe.report("told")


def leave_others(pipe, config):
    """Processes that hold all that they inherit, as a pool of a user's would."""
    started = subprocess.Popen(["sleep", "600"])
    forked = os.fork()
    if not forked:
        time.sleep(600)
    pipe.report("told", others=[started.pid, forked])
    print("before the end", file=sys.stderr, flush=True)
    time.sleep(600)


TO_GROUP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signalled(pipe, config):
    for number in TO_GROUP:
        os.kill(os.getpid(), number)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    pipe.report("told", blocked=sorted(blocked), pending=sorted(signal.sigpending()))


def terminate_others(pipe, config):
    for number in config:
        started = subprocess.Popen(["sleep", "600"])
        forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        forked.start()
        for one in (started, forked):
            os.kill(one.pid, number)
        forked.join()
        pipe.report("told", ended=[started.wait(), forked.exitcode])


if __name__ == "__main__":
    name, *parent = os.environ["PLAYED"].split()
    if name == "signalled":
        for number in TO_GROUP:
            os.kill(os.getpid(), number)
    while name in ("late", "kept") and os.getppid() == int(parent[0]):
        time.sleep(0.01)  # it begins when its parent is dead
    pipe = Pipe()
    if name == "hung":  # before it reads its config
        time.sleep(600)
    globals()[name](pipe, pipe.read_config())
'''

#: A parent that is killed: it starts a child and tells its number, with that of a process that it
#: forked and that has its end of the messages.
PARENT = """
import os, sys, time
from headrace_server.process.child import Child
def tell(child, event):
    print(child.pid, forked, flush=True)
played = {"PLAYED": f"{sys.argv[1]} {os.getpid()}"}
forked = 0
child = Child("children", "c", None, tell, os.environ | played)
if sys.argv[1] in ("hung", "late", "kept"):
    while not child._unsent.empty():
        time.sleep(0.01)
    time.sleep(0.2)
    forked = os.fork() if sys.argv[1] == "kept" else 0
    if forked or sys.argv[1] != "kept":
        tell(child, None)
time.sleep(600)
"""


class Played:
    """A child with the events that it reported."""

    def __init__(self, name: str, config: Any, environment: Mapping[str, str]) -> None:
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        played = {**environment, "PLAYED": name}
        self.child = Child("children", name, config, self._on_event, played)

    def _on_event(self, child: Child, event: Mapping[str, Any]) -> None:
        with self._news:
            self.events.append(dict(event))
            self._news.notify_all()

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.events) >= count, timeout_s), self.events
            return self.events

    def ended(self) -> int | None:
        """Return its exit code, once all its output was read."""
        code = self.child.wait(PATIENCE_S)
        self.child.close()
        return code


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "children.py").write_text(CHILDREN)
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    return {**os.environ, "PYTHONPATH": path}


@pytest.fixture
def play(environment: dict[str, str]) -> Iterator[Callable[..., Played]]:
    played: list[Played] = []

    def start(name: str, config: Any = None) -> Played:
        played.append(Played(name, config, environment))
        return played[-1]

    yield start
    for one in played:
        if one.child.wait(0) is None:
            one.child.kill()
            one.ended()


def test_a_child_whose_report_is_not_understood_is_ended(play, monkeypatch):
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))

    def refuse(self: Played, child: Child, event: Mapping[str, Any]) -> None:
        perform({}, event)

    monkeypatch.setattr(Played, "_on_event", refuse)
    one = play("watch")
    assert one.ended() == -signal.SIGKILL
    assert isinstance(raised[0], ServerError)


def test_ctrl_c_is_nothing_to_a_child_from_its_first_moment_on(play):
    one = play("signalled")
    assert one.ended() == 0
    assert one.events == [{"event": "told", "blocked": [], "pending": []}]
    assert not one.child.last_words
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {*_TO_GROUP}


def test_processes_that_user_code_starts_still_end_by_sigterm(play):
    """And by SIGHUP, which comes to the whole group of a terminal that is closed."""
    numbers = [signal.SIGTERM, signal.SIGHUP]
    one = play("terminate_others", numbers)
    assert one.ended() == 0
    assert one.events == [{"event": "told", "ended": [-number, -number]} for number in numbers]


@pytest.mark.parametrize("kind", ["echo", "watch", "hung", "late", "kept"])
def test_a_child_whose_parent_was_killed_ends(kind, environment):
    """It 1 serves, 2 is busy, 3 has not read its config yet, 4 has not begun yet, 5 as before, and
    a process that the parent forked has the parent's end of its messages.
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, kind], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    pid, forked = map(int, parent.stdout.readline().split())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        assert gone(pid)
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)


def test_the_last_words_of_a_crash_are_where_it_happened(play):
    one = play("crash")
    assert one.ended() == -signal.SIGSEGV
    words = one.child.words().splitlines()
    assert words[0] == "Fatal Python error: Segmentation fault"
    assert words[1].startswith("Current thread")
    assert any("in crash" in line for line in words)
    assert "something before" not in words


def test_a_child_that_prints_much_is_read_also_where_our_own_stderr_is_broken(play, monkeypatch):
    class Broken:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    one = play("chatter")
    assert one.wait_for(1) == [{"event": "told"}]
    assert one.ended() == 0
    assert max(map(len, one.child.last_words)) < 200_000  # a line without an end is cut


def test_processes_that_outlive_a_child_and_hold_its_pipes_hold_nobody_up(play):
    one = play("leave_others")
    others = one.wait_for(1)[0]["others"]
    try:
        one.child.kill()
        started = time.monotonic()
        assert one.ended() == -signal.SIGKILL
        assert time.monotonic() - started < PATIENCE_S / 2
        assert not gone(others[0], 0) and not gone(others[1], 0)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
    assert all(map(gone, others))
