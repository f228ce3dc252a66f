"""``hs.run`` from the outside: the programs that can call it, and its traces."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace_server as hs
from headrace_proto.errors import ServerError
from tests.children import gone
from tests.nursery import environment, warm_run
from tests.patience import PATIENCE_S
from tests.ports import free_port


def numbered(n: int = 12) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(n)])


BATCHES = numbered().batch(4)


def rows(server: hs.Server) -> list[int]:
    with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
        return [i for batch in feed for i in batch["i"].tolist()]


def test_the_error_of_a_start_that_takes_too_long_names_what_it_waited_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(600)\n")
    pipeline = numbered().map("slow_to_import:f").batch(4)
    for patience_s in (2, 8, 32):  # a crowded machine needs longer to come to the workers at all
        with pytest.raises(ServerError) as caught:
            hs.run(pipeline, start_timeout_s=patience_s)
        told = str(caught.value)
        if "in vain for the locator" not in told:
            break
    assert f"start_timeout_s={patience_s} seconds in vain for the workers to open" in told


# What runs


def test_more_workers_than_partitions_is_a_warning_that_names_both(caplog):
    caplog.set_level(logging.WARNING, "headrace.server")
    with hs.run(BATCHES, workers=3, partitions=1) as server:
        assert sorted(server.pids) == ["locator", "worker-0-0"]
        assert rows(server) == list(range(12))
    assert "workers=3 and partitions=1" in caplog.records[0].message


def test_a_new_feed_has_a_partition_for_each_worker_and_keeps_them_in_its_state(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "headrace.server")
    state = {"state_dir": tmp_path, "durability": "process"}
    with hs.run(BATCHES, workers=2, **state) as server:
        assert sorted(server.pids) == ["locator", "worker-0-0", "worker-1-0"]
        assert len(server.stats()["default"]["partitions"]) == 2
    assert not caplog.records
    with hs.run(BATCHES, workers=3, **state) as server:
        assert sorted(server.pids) == ["locator", "worker-0-0", "worker-1-0"]
        assert rows(server) == [0, 1, 2, 3, 6, 7, 8, 9]  # a remainder of each partition
    assert "workers=3 and partitions=2" in caplog.records[0].message
    with pytest.raises(ServerError, match="partitions was 2 and is 3"):
        hs.run(BATCHES, workers=3, partitions=3, **state)


def test_a_process_with_more_than_1024_open_files_can_serve():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with hs.run(BATCHES) as server:
            pid = server.pids["worker-0-0"]
            os.kill(pid, 9)
            assert rows(server) == list(range(12))
            assert "worker-0-0" not in server.pids  # its death was noticed
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# In which programs


FORKS = """
import os, sys, warnings
import headrace
import headrace_server as hs
warnings.simplefilter("ignore")  # a thread may be anywhere
with hs.run(hs.from_examples([{"i": k} for k in range(12)]).batch(4)) as server:
    pid = os.fork()
    if not pid:
        sys.exit(0)  # through the end of the block, and the exit handlers
    os.waitpid(pid, 0)
    with headrace.connect(server.address, timeout=60) as feed:
        print([i for batch in feed for i in batch["i"].tolist()])
"""


def test_a_forked_child_that_ends_does_not_end_the_server():
    done = warm_run("-c", FORKS, serves=True)
    assert done.stdout == f"{list(range(12))}\n", done.stderr


UNCLOSED = """
import headrace_server as hs
server = hs.run(hs.from_examples([{"i": 1}]).batch(1), shm_dir=DIRECTORY)
print(*server.pids.values())
"""


def test_a_program_that_ends_without_closing_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", UNCLOSED.replace("DIRECTORY", repr(str(tmp_path)))]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert all(gone(int(pid)) for pid in done.stdout.split())


def test_a_server_that_nothing_refers_to_is_stopped_and_its_address_is_free_again(tmp_path, caplog):
    """As a notebook's cell that is run three times, and then another with its address."""
    caplog.set_level(logging.WARNING, "headrace.server")
    bind = f"tcp://127.0.0.1:{free_port()}"  # that of the worker is free, too
    first = hs.run(BATCHES, bind=bind, state_dir=tmp_path, durability="process", http="127.0.0.1:0")
    pids, address = list(first.pids.values()), first.address
    assert repr(first) == f"<headrace_server.Server at {address}: running; feeds: 'default'>"
    for taken in (
        {"bind": address},
        {"http": str(first.http_address).removeprefix("http://")},
        {"state_dir": tmp_path},
    ):
        with pytest.raises((ServerError, ValueError), match=rf"{next(iter(taken))}=.* in use"):
            hs.run(BATCHES, **taken)
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    del first
    with hs.run(BATCHES, bind=address, state_dir=tmp_path, durability="process") as server:
        assert all(map(gone, pids)) and server.address == address
        with headrace.connect(address, timeout=PATIENCE_S) as feed:
            assert repr(feed) == f"<headrace.Feed 'default' at {address}: open>"
            assert [i for batch in feed for i in batch["i"].tolist()] == list(range(12))
            assert server.wait(PATIENCE_S)
            assert repr(feed).endswith(": ended>")
        assert repr(feed).endswith(": closed>")
        assert repr(server).endswith(": running; feeds: 'default' ended>")
    assert repr(server).endswith(": closed; feeds: 'default' ended>")
    assert "is stopped: nothing refers to it any more" in caplog.text


# What outlives a server


def test_a_feed_that_is_not_that_of_the_state_is_refused(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    hs.run(BATCHES, state_dir=state, durability="process").close()
    with pytest.raises(ServerError, match=r"is not what the state.* use another state_dir"):
        hs.run(numbered().batch(3), state_dir=state, durability="process")
    hs.run(numbered().batch(3), state_dir=state, durability="off").close()
    hs.run(BATCHES, state_dir=state, durability="process").close()
