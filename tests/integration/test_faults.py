"""Deaths by ``kill -9`` and stops of real processes, which must lose no work."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

import headrace
import headrace_server as hs
from headrace_server.process.rundir import sweep
from tests.children import children_of
from tests.patience import PATIENCE_S, eventually

from .processes import Process, serve, trainer
from .serving import connect, serving, trainers_of


def numbered(n: int) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(n)])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_a_death_of_a_trainer_is_logged_once_though_it_has_a_session_with_each_worker(capfd):
    with serving(numbered(200).batch(5), lease_ttl_s=600, workers=2, partitions=2) as server:
        with trainer(server.address, "--hold", "3") as victim:
            victim.wait_for("holding")
            victim.kill()
            with connect(server) as feed:  # it gets all only once both workers know of the death
                assert list(feed)
    said = [line for line in capfd.readouterr().err.splitlines() if line.endswith(" died")]
    assert [line.partition(" at ")[2] for line in said] == [
        f"{socket.gethostname()}:{victim.pid} of 'default' died"
    ]


def test_an_exception_in_the_loop_body_sends_the_rows_out_again():
    with serving(numbered(40).batch(4)) as server:
        seen = []

        def train() -> None:
            with connect(server) as feed:
                for batch in feed:
                    if len(seen) == 3:
                        raise RuntimeError("boom")
                    seen.append(batch["i"].tolist())

        with pytest.raises(RuntimeError, match="boom"):
            train()
        with connect(server) as feed:
            rest = [batch["i"].tolist() for batch in feed]
    assert seen + rest == [list(range(k, k + 4)) for k in range(0, 40, 4)]


@pytest.mark.parametrize("told", [False, True])
def test_a_feed_that_has_failed_says_once_that_the_last_commit_may_be_lost(told):
    with serving(numbered(40).batch(4)) as server:
        feed = connect(server)
        next(feed)
        server.close()
        eventually(lambda: "failed" in repr(feed))
        if told:
            with pytest.raises(headrace.HeadraceError, match="stop"):
                next(feed)
        else:
            with pytest.raises(headrace.HeadraceError, match="stop"):
                feed.close()
        feed.close()


def test_a_killed_server_leaves_no_process_and_the_next_start_sweeps_its_memory(tmp_path):
    (tmp_path / "feeds.py").write_text(
        "import headrace_server as hs\n"
        "def numbers():\n"
        "    return hs.from_examples([{'i': k} for k in range(20)]).batch(4)\n"
    )
    shm = Path(tempfile.mkdtemp(dir="/dev/shm"))  # a directory that no other start sweeps meanwhile
    options = ("--workers", "2", "--partitions", "2", "--shm-dir", str(shm))
    try:
        process, _ = serve(tmp_path, "feeds.py:numbers", *options, warm=False)
        with process:
            children = children_of(process.pid)
            assert len(children) == 3
            process.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
        assert len(list(shm.iterdir())) == 1
        with hs.run(numbered(4).batch(2), shm_dir=shm):
            assert not list(shm.glob(f"headrace-*-{process.pid}-*"))
        assert not list(shm.iterdir())
    finally:
        shutil.rmtree(shm)


def test_a_killed_program_that_had_forked_leaves_no_process_of_its_server():
    code = (
        "import os, time, headrace_server as hs\n"
        "server = hs.run(hs.from_examples([{'i': 1}]).batch(1))\n"
        "if os.fork() == 0: time.sleep(60)\n"
        "print(*server.pids.values(), flush=True)\n"
        "time.sleep(60)\n"
    )
    with Process("-c", code, warm=False) as program:
        pids = [int(pid) for pid in (program.next_line() or "").split()]
        assert len(pids) == 2
        forked = [pid for pid in children_of(program.pid) if pid not in pids]
        program.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        kill(forked[0])
    sweep(Path("/dev/shm"))


def test_a_killed_locator_ends_the_server_and_trainers_that_are_in_go_on_until_then():
    with hs.run(numbered(20).batch(4), lease_ttl_s=2.0) as server:
        feed = connect(server)
        next(feed)
        kill(server.pids["locator"])
        with pytest.raises(headrace.ServerError, match="locator was killed by SIGKILL"):
            server.wait(PATIENCE_S)
        next(feed)
        server.close()
        with pytest.raises(headrace.ConnectionLost, match="the server was stopped"):
            for _ in feed:
                pass
        feed.close()


def test_no_lease_ends_because_the_server_stood_still():
    """1 all stand still for longer than a lease, 2 the server wakes first, 3 it hears trainers."""
    with (
        hs.run(numbered(100).batch(4), lease_ttl_s=2.0) as server,
        trainer(server.address, "--hold", "1") as near,
        trainer(server.address, "--hold", "1", "--far") as far,
    ):
        for one in (near, far):
            one.wait_for("holding")
        assert sorted(one["local"] for one in trainers_of(server)) == [False, True]
        for trainers in ([], [near.pid, far.pid]):
            for number, seconds in ((signal.SIGSTOP, 2.5), (signal.SIGCONT, 0.0)):
                for pid in (*server.pids.values(), *trainers):
                    os.kill(pid, number)
                time.sleep(seconds)
            eventually(lambda: all(one["silent_s"] < 0.5 for one in trainers_of(server)))
            now = server.stats()["default"]
            assert now["expired"] == 0 and len(now["trainers"]) == 2
            assert now["standing"]["leased"] >= 2


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_was_removed_is_read_on_and_one_that_was_cut_stops_the_feed(cut, tmp_path):
    path = tmp_path / "data.tokens"
    path.write_bytes(bytes(4 << 20))
    tokens = hs.read_tokens(str(path), window=1023, dtype="uint32").batch(4)
    with serving(tokens) as server:
        with connect(server) as feed:
            next(feed)
            if not cut:
                path.unlink()
                assert sum(batch.rows for batch in feed) == 1020
                return
            os.truncate(path, 8192)
            with pytest.raises(headrace.FilesMissing, match="was replaced while the feed runs"):
                list(feed)
