"""The supervisor and real children: starts, restarts, and ends."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.rundir import RunDirectory
from headrace_server.server import crew
from headrace_server.server import supervisor as module
from headrace_server.server.supervisor import Supervisor
from tests.children import gone
from tests.patience import PATIENCE_S, eventually
from tests.shortage import no_descriptors

Start = Callable[..., Supervisor]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Supervisor] = []

    def make(n: int = 12, partitions: int = 1, workers: int = 1, **options: Any) -> Supervisor:
        pipeline = hs.from_examples([{"i": k} for k in range(n)]).batch(4)
        feed = FeedConfig("default", pipeline.declaration(), (), partitions)
        config = RunConfig((feed,), "", ("tcp://127.0.0.1:*",), workers=workers, slab_bytes=1 << 20)
        running.append(Supervisor(config, RunDirectory(str(tmp_path)), 60, **options))
        return running[-1]

    yield make
    for one in running:
        one.stop()
    assert list(tmp_path.iterdir()) == []


def rows(supervisor: Supervisor) -> list[int]:
    with headrace.connect(supervisor.addresses[0], timeout=PATIENCE_S) as feed:
        return [i for batch in feed for i in batch["i"].tolist()]


def test_an_answer_is_waited_for_in_time_in_which_this_process_ran(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """1. The locator stands still; 2. so does this process, for an hour; 3. it wakes first."""
    slept, looks, answers = [0.0], [0], []

    def now() -> float:
        looks[0] += 1
        return time.monotonic() + slept[0]

    supervisor = start()
    locator = supervisor.pids()["locator"]
    monkeypatch.setattr(module, "Deadline", functools.partial(Deadline, source=now))
    os.kill(locator, signal.SIGSTOP)
    thread = threading.Thread(target=lambda: answers.append(supervisor.look(PATIENCE_S)))
    thread.start()
    try:
        eventually(lambda: looks[0] >= 3)
        slept[0], last = 3600.0, looks[0]
        eventually(lambda: looks[0] >= last + 2 or not thread.is_alive())
    finally:
        os.kill(locator, signal.SIGCONT)
    thread.join(PATIENCE_S)
    assert answers and "default" in answers[0]["feeds"]


def test_a_drain_says_that_it_waits_for_answers_where_no_batch_is_out(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level("INFO")
    supervisor = start()
    ask, late = supervisor.ask_owners, [ServerError("worker 0 gave no answer within 1 s")]

    def ask_later(*order: Any) -> Any:
        if late:
            raise late.pop()
        return ask(*order)

    monkeypatch.setattr(supervisor, "ask_owners", ask_later)
    assert supervisor.drain(PATIENCE_S)
    assert "the drain waits for the answers of the workers" in caplog.messages


def test_a_stop_while_a_worker_is_being_replaced_leaves_none_behind(start: Start):
    for _ in range(5):
        supervisor = start()
        pids = list(supervisor.pids().values())
        os.kill(supervisor.pids()["worker-0-0"], signal.SIGKILL)
        eventually(lambda s=supervisor: "worker-0-0" not in s.pids())
        supervisor.stop()  # its successor is due in a tenth of a second
        assert supervisor.pids() == {} and all(map(gone, pids))


def test_a_worker_is_started_again_as_soon_as_there_are_descriptors(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(crew, "_RETRY_S", 0.05)
    supervisor = start()
    with no_descriptors():
        os.kill(supervisor.pids()["worker-0-0"], signal.SIGKILL)
        eventually(lambda: caplog.text.count("worker-0-1 can not be started now: [Errno 24]") > 1)
        assert sorted(supervisor.pids()) == ["locator"] and supervisor.failure is None
    assert rows(supervisor) == list(range(12)) and supervisor.failure is None
    eventually(lambda: sorted(supervisor.pids()) == ["locator", "worker-0-1"])


def test_a_worker_is_started_again_as_soon_as_there_are_threads_and_until_then_it_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(crew, "_RETRY_S", 0.05)
    supervisor = start()
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "headrace-worker-0-1":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        os.kill(supervisor.pids()["worker-0-0"], signal.SIGKILL)
        eventually(lambda: caplog.text.count("worker-0-1 can not be started now: [Errno 11]") > 1)
        assert sorted(supervisor.pids()) == ["locator"] and supervisor.failure is None
        assert "refused now: [Errno 11] can't start new thread" in supervisor.crew.posts[0].doing
    assert rows(supervisor) == list(range(12)) and supervisor.failure is None


def test_a_fault_in_the_watch_over_the_workers_fails_the_server_and_nobody_waits_in_vain(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    supervisor = start()

    def fail(post: Any, now: float) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("headrace_server.server.liveness.Post.look", fail)
    assert supervisor.wait(PATIENCE_S)
    assert "its processes are not watched any more: ValueError: a fault" in str(supervisor.failure)


def test_a_restart_of_a_feed_that_fails_halfway_is_the_failure_of_the_server(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """The locator stays, and gives trainers the reason."""
    supervisor = start()
    locator = supervisor.pids()["locator"]

    def refused(*args: Any) -> Any:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(supervisor.starts, "take_back", refused)
    why = r"'default' could not be taken back: .*the disk is broken"
    with pytest.raises(ServerError, match=why):
        supervisor.restart("default")
    assert supervisor.wait(PATIENCE_S) and supervisor.pids() == {"locator": locator}
    with pytest.raises(ServerError, match=why):
        rows(supervisor)
    supervisor.stop()
    assert supervisor.pids() == {} and gone(locator)


def test_a_locator_that_does_not_listen_is_ended_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace_server.server.crew._STOP_S", 0.3)
    supervisor = start()
    pids = supervisor.pids()
    os.kill(pids["locator"], signal.SIGSTOP)
    supervisor.stop()
    assert all(map(gone, pids.values()))


def test_a_start_without_a_free_descriptor_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def none_left() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", none_left)
    directory = RunDirectory(str(tmp_path))
    with pytest.raises(OSError, match="Too many open files"):
        Supervisor(RunConfig((), "", ()), directory, 1)
    assert list(tmp_path.iterdir()) == []


def test_workers_ask_to_be_killed_first_when_memory_runs_out_and_keep_to_their_bound(start: Start):
    supervisor = start(worker_memory_bytes=1 << 30)
    pid = supervisor.pids()["worker-0-0"]
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 500
    limits = Path(f"/proc/{pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max data size"))
    assert line.split()[3:5] == [str(1 << 30)] * 2
