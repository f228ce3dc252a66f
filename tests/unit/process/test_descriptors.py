"""Connections never use up the descriptors that a process needs for its own files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace_proto.errors import LimitExceeded
from headrace_server.process.descriptors import plan
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("used", [15, 60])
@pytest.mark.parametrize("hard", [256, 1024, 4096, 1 << 20])
def test_own_files_fit_beyond_the_connections(hard: int, used: int):
    division = plan(hard, used, 40, 4096)
    assert division.limit <= hard and 1 <= division.sessions <= 4096
    assert division.limit - division.line >= 40
    assert division.line - used > division.connections > division.sessions


def test_a_limit_that_is_large_enough_gives_every_session_that_was_asked_for():
    division = plan(1 << 20, 20, 40, 4096)
    assert division.sessions == 4096
    assert division.limit < 5_500  # more connections than that would only cost memory


def test_a_limit_that_is_too_small_for_one_session_names_the_least_that_does():
    with pytest.raises(LimitExceeded, match=r"open files is 64 .* at least [0-9]+.*ulimit -n") as e:
        plan(64, 20, 40, 10)
    least = int(str(e.value).split("at least ")[1].split(":")[0])
    assert plan(least, 20, 40, 10).sessions >= 1
    with pytest.raises(LimitExceeded):
        plan(least - 2, 20, 40, 10)


_FULL = """
import os, resource
from headrace_server.process.descriptors import aside, divide, own
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 256))
division = divide(40, 10)
connections = []
try:
    while True:
        connections.append(os.dup(0))
except OSError:
    pass
assert max(connections) == division.line - 1, (connections, division)
assert len(connections) > division.connections
for _ in range(40):  # all that the locator may ever open
    with own():
        fd = os.open("/dev/null", os.O_RDONLY)
    assert division.line <= fd < division.limit
os.close(connections.pop(0))
with own():
    low = os.open("/dev/null", os.O_RDONLY)
assert low < division.line
high = aside(low)
assert high >= division.line and os.readlink(f"/proc/self/fd/{high}") == "/dev/null"
connections.append(os.dup(0))  # its place is a connection's again
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (division.line, 256)
try:
    with own():
        raise ValueError
except ValueError:
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (division.line, 256)
print("well")
"""


def test_own_files_are_opened_and_kept_beyond_the_line_while_connections_fill_all_below():
    ended = subprocess.run(
        [sys.executable, "-c", _FULL], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.stdout == "well\n", ended.stderr
