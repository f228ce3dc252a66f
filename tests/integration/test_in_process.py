"""``workers=0``: the whole server in threads of this process, behind the same doors."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_server.process.in_thread import InThread
from tests.children import children_of, start_only_one_thread
from tests.patience import PATIENCE_S

from .processes import Process
from .serving import connect

LONG = [{"key": b"k%d" % i, "x": [float(i)] * (3 + i % 5), "y": i} for i in range(40)]
_TRAINER = """
import sys, headrace
with headrace.connect(sys.argv[1], timeout=60) as feed:
    rows = sum(batch.rows for batch in feed)
    print('{"event": "done", "rows": %d, "local": %d}' % (rows, feed.local), flush=True)
"""
_SCRIPT = """
import json
import headrace, headrace_server as hs
print(json.dumps({"event": "ran"}), flush=True)
def doubled(example):
    return {"x": example["x"] * 2}
examples = [{"x": float(i)} for i in range(4)]
with hs.run(hs.from_examples(examples).map(doubled).batch(4), workers=0) as server:
    with headrace.connect(server.address, timeout=60) as feed:
        print(json.dumps({"event": "done", "x": next(feed)["x"].tolist()}), flush=True)
"""
_called = threading.Event()
_free = threading.Event()


def numbers(n: int = 100) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).shuffle(seed=5).batch(4)


def segments(**options: Any) -> hs.Pipeline:
    features = {"key": hs.scalar("bytes"), "x": hs.sequence("float32"), "y": hs.scalar("int64")}
    return hs.from_examples(LONG, features).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=["y"],
        initial_states={"n": hs.zeros((), "int64")},
        num_unroll=2,
        batch_size=4,
        **options,
    )


def trained(feed: headrace.Feed) -> list[Any]:
    """Train to the end of a feed; return all that its batches held."""
    seen: list[Any] = []
    for batch in feed:
        if isinstance(batch, headrace.Batch):
            seen.append(batch["i"].tolist())
        else:
            x, n = batch.sequences["x"].tolist(), batch.state("n").tolist()
            seen.append((batch.key.tolist(), x, n))
            batch.save_state("n", batch.state("n") + 1)
    return seen


def children() -> set[int]:
    return set(children_of(os.getpid()))


def eventually_at_most(threads: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while threading.active_count() > threads:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["plain", "arrival", "lanes"])
def test_threads_give_the_same_stream_as_processes(name: str) -> None:
    lanes = {"order": "lanes", "state_placement": "trainer"}
    make = {"plain": numbers, "arrival": segments, "lanes": lambda: segments(**lanes)}[name]
    streams = []
    for workers in (0, 1):
        with hs.run(make(), workers=workers) as server, connect(server, prefetch=0) as feed:
            streams.append(trained(feed))
            assert feed.local
        assert server.failed_feeds() == {}
    assert streams[0] == streams[1] and len(streams[0]) > 20


def test_a_server_of_threads_starts_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    limit, before = resource.getrlimit(resource.RLIMIT_NOFILE), children()
    threads = threading.active_count()
    with hs.run(numbers(), workers=0, shm_dir=tmp_path) as server:
        assert set(server.pids.values()) == {os.getpid()} and children() == before
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == limit
        with connect(server) as feed:
            assert sum(len(rows) for rows in trained(feed)) == 100
        assert server.wait(PATIENCE_S)
        assert server.stats()["default"]["rows"] == 100
    assert list(tmp_path.iterdir()) == []
    eventually_at_most(threads)


def test_several_servers_of_threads_live_side_by_side_and_other_processes_train() -> None:
    with hs.run(numbers(), workers=0) as one, hs.run(numbers(60), workers=0) as two:
        with connect(one) as feed:
            assert sum(len(rows) for rows in trained(feed)) == 100
        with Process("-c", _TRAINER, two.address) as trainer:
            done = trainer.wait_for("done")
            assert (done["rows"], done["local"]) == (60, 1)


def test_a_server_of_threads_goes_on_from_its_state_directory(tmp_path: Path) -> None:
    with hs.run(segments(), workers=0, state_dir=tmp_path) as server, connect(server) as feed:
        for _ in range(5):
            batch = next(feed)
            batch.save_state("n", batch.state("n") + 1)
        feed.commit()
    with hs.run(segments(), workers=0, state_dir=tmp_path) as server, connect(server) as feed:
        first = next(feed)
        assert (first.state("n") == first.sequence).all() and (first.sequence > 0).any()
        first.save_state("n", first.state("n") + 1)
        for batch in feed:
            assert (batch.state("n") == batch.sequence).all()
            batch.save_state("n", batch.state("n") + 1)


def test_a_feed_of_threads_is_taken_back_and_its_trainers_learn_it(tmp_path: Path) -> None:
    """1. A trainer takes a snapshot, and trains on.
    2. The feed is taken back to the snapshot: all threads end, and others begin.
    """
    with hs.run(numbers(), workers=0, state_dir=tmp_path) as server:
        with connect(server) as feed:
            before = next(feed)["i"].tolist()
            token = feed.snapshot()
            after = next(feed)["i"].tolist()
            feed.commit()
        with connect(server, resume=token) as feed:
            assert next(feed)["i"].tolist() == after != before


@pytest.mark.parametrize("durable", [False, True])
def test_a_feed_of_threads_is_started_from_its_beginning(durable: bool, tmp_path: Path) -> None:
    options = {"state_dir": tmp_path} if durable else {}
    with hs.run(numbers(), workers=0, **options) as server:
        with connect(server) as feed:
            first = next(feed)["i"].tolist()
            feed.commit()
        server.restart(force=True)
        with connect(server) as feed:
            assert next(feed)["i"].tolist() == first


def stays(example: dict[str, Any]) -> dict[str, Any]:
    _called.set()
    _free.wait(PATIENCE_S)
    return example


def fails(example: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("this one not")


def test_a_server_of_threads_is_left_while_a_function_of_the_user_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A function stays in a step, so its thread cannot end.
    2. The server is left all the same; the thread ends once the function has returned.
    """
    monkeypatch.setattr("headrace_server.supervisor.crew._WORDS_S", 0.1)
    _called.clear()
    _free.clear()
    threads = threading.active_count()
    pipeline = hs.from_examples([{"i": 1}] * 8).map(stays, schema={"i": hs.scalar("int64")})
    with hs.run(pipeline.batch(4), workers=0, shm_dir=tmp_path):
        assert _called.wait(PATIENCE_S)
    assert list(tmp_path.iterdir()) == []
    _free.set()
    eventually_at_most(threads)


def test_a_thread_that_was_replaced_amid_a_function_stores_nothing_when_it_returns(tmp_path: Path):
    """1. A commit arrives while a function of another feed runs, which is then taken back.
    2. The next thread stores it, and more.  3. The function returns; the journal stays whole.
    """
    _called.clear()
    _free.clear()
    slow = hs.from_examples([{"i": i} for i in range(4000)]).map(_waits).batch(4)
    got: list[int] = []
    options: dict[str, Any] = {"state_dir": tmp_path, "durability": "process", "workers": 0}
    with hs.run({"numbers": numbers(400), "slow": slow}, **options) as server:
        with (
            connect(server, feed="numbers", commit="explicit") as feed,
            connect(server, feed="slow") as other,
        ):
            batches = iter(feed)
            first = next(batches)
            got += first["i"].tolist()
            left = threading.Thread(target=lambda: list(_until_an_error(other)))
            left.start()
            assert _called.wait(PATIENCE_S)
            commit = threading.Thread(target=lambda: feed.commit(first))
            commit.start()
            server.restart("slow", force=True)
            commit.join(PATIENCE_S)
            for _ in range(20):
                batch = next(batches)
                got += batch["i"].tolist()
                feed.commit(batch)
            _free.set()
            other.close()
            left.join(PATIENCE_S)
    with hs.run({"numbers": numbers(400), "slow": slow}, **options) as server:
        with connect(server, feed="numbers") as feed:
            got += [i for batch in feed for i in batch["i"].tolist()]
    assert sorted(got) == list(range(400))


def _waits(example: dict[str, Any]) -> dict[str, Any]:
    """Wait in an example that is not in the first chunk."""
    if example["i"] == 2000 and not _free.is_set():
        _called.set()
        _free.wait(PATIENCE_S)
    return example


def _until_an_error(feed: headrace.Feed) -> Any:
    with contextlib.suppress(headrace.HeadraceError):
        yield from feed


def test_a_script_is_not_run_again_for_the_functions_in_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    with Process(str(tmp_path / "script.py")) as script:
        assert script.wait_for("done")["x"] == [0.0, 2.0, 4.0, 6.0]
        assert [line for line in script.lines if "ran" in line] == ['{"event": "ran"}\n']


def test_a_function_that_raises_fails_its_feed_and_not_the_program() -> None:
    pipeline = (
        hs.from_examples([{"i": 1}] * 8).map(fails, schema={"i": hs.scalar("int64")}).batch(4)
    )
    with hs.run(pipeline, workers=0) as server:
        with pytest.raises(headrace.DataError, match="this one not"), connect(server) as feed:
            next(feed)
        assert "this one not" in server.failed_feeds()["default"]


@pytest.mark.parametrize(
    ("option", "value"), [("worker_timeout_s", 5.0), ("worker_memory_bytes", 1 << 30)]
)
def test_what_bounds_a_worker_process_is_refused_without_one(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{option}=.*workers=0.*workers=1"):
        hs.run(numbers(), workers=0, **{option: value})


def test_ctrl_c_at_the_start_of_any_thread_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C comes when the program starts its first thread, then at the second, and so on."""
    begin, threads = threading.Thread.start, threading.active_count()
    started, interrupted_at, was_interrupted = 0, 0, True

    def interrupted(thread: threading.Thread) -> None:
        nonlocal started, was_interrupted
        begin(thread)
        if threading.current_thread() is threading.main_thread():
            started += 1
            if started == interrupted_at:
                was_interrupted = True
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    while was_interrupted:  # else it has run to its end
        started, interrupted_at, was_interrupted = 0, interrupted_at + 1, False
        with contextlib.suppress(KeyboardInterrupt):
            with hs.run(numbers(), workers=0, shm_dir=tmp_path) as server:
                with connect(server) as feed:
                    assert sum(batch.rows for batch in feed) == 100
        eventually_at_most(threads)
        assert not list(tmp_path.iterdir())
    assert interrupted_at > 5


def test_nothing_is_left_of_a_thread_that_can_not_start(monkeypatch: pytest.MonkeyPatch):
    """As in a container with a limit of threads: the supervisor tries again after an OSError."""
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    started = start_only_one_thread(monkeypatch)
    with pytest.raises(OSError, match="can't start new thread"):
        InThread("headrace_server.worker.worker", "worker-0-0", b"", lambda *event: None, {})
    started[0].join(PATIENCE_S)
    assert not started[0].is_alive()
    assert sorted(os.listdir("/proc/self/fd")) == before
