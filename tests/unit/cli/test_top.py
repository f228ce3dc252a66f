"""``headrace top`` paints again and again on a terminal, and once elsewhere."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from headrace_server.cli import main
from headrace_server.cli.top import fitted

from .served import Served, served

__all__ = ["served"]


def test_where_there_is_no_terminal_it_prints_once(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    assert main(["top", "--http", served.address]) == 0
    told = capsys.readouterr().out
    assert "serving" in told and "\x1b" not in told


def test_a_pause_of_nothing_is_refused(served: Served, capsys: pytest.CaptureFixture[str]):
    assert main(["top", "--every", "0", "--http", served.address]) == 2
    assert "--every 0 is less than 0.1 seconds" in capsys.readouterr().err


def test_on_a_terminal_it_goes_on_until_ctrl_c_and_leaves_it_as_it_was(served: Served):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "headrace_server.cli", "top", "--every", "0.1"]
    process = subprocess.Popen([*command, "--http", served.address], stdout=slave, stderr=slave)
    os.close(slave)
    said = b""
    deadline = time.monotonic() + 30
    asked = False
    while time.monotonic() < deadline:
        if select.select((master,), (), (), 0.1)[0]:
            try:
                said += os.read(master, 65536)
            except OSError:  # nobody has the other end any more
                break
        if said.count(b"serving") >= 3 and not asked:
            asked = True
            process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    os.close(master)
    assert said.startswith(b"\x1b[?1049h\x1b[?25l") and said.endswith(b"\x1b[?25h\x1b[?1049l")
    assert said.count(b"\x1b[H") >= 3


def test_lines_are_cut_to_the_width_and_color_takes_none_of_it():
    assert fitted(["abcdef", "\x1b[31mab\x1b[0mcd"], 3) == ["abc", "\x1b[31mab\x1b[0mc\x1b[0m"]
    assert fitted(["日本語"], 4) == ["日本"]
