"""A process of the nursery equals a freshly started one."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

from tests import nursery

MODULE = "tests.unit.forked"


def told(popen: Any) -> dict[str, Any]:
    process = popen(
        [sys.executable, "-m", MODULE, "one", "two"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            "PYTHONPATH": os.pathsep.join(["/first", *sys.path]),
            "PYTHONSAFEPATH": "1",
            "LC_ALL": "C.UTF-8",  # else an interpreter that starts sets one of its own
        },
    )
    out, err = process.communicate(b"an order")
    assert process.returncode == 7 and err == b"an error\n"
    return json.loads(out)


def test_it_gets_what_a_process_gets_that_is_started_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_TEST", "1")
    told(nursery.WarmPopen)  # the nursery starts before what follows
    monkeypatch.chdir(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 8, hard))
    try:
        forked, started = (told(popen) for popen in (nursery.WarmPopen, subprocess.Popen))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert forked == started
    assert forked["parent"] == os.getpid() and forked["files"] == [soft - 8, hard]
