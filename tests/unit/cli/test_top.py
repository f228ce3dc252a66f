"""``headrace top`` paints again and again on a terminal, and once elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable

import pytest

from headrace_server.cli import main
from headrace_server.cli.top import fitted, screen
from tests.nursery import WarmPopen
from tests.patience import PATIENCE_S

from ..watch.statuses import feed
from .served import Served, served

__all__ = ["served"]

ENTERED, LEFT = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def test_where_there_is_no_terminal_it_prints_once(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    assert main(["top", "--http", served.address]) == 0
    told = capsys.readouterr().out
    assert "serving" in told and "\x1b" not in told


def test_a_pause_of_nothing_is_refused(served: Served, capsys: pytest.CaptureFixture[str]):
    assert main(["top", "--every", "0", "--http", served.address]) == 2
    assert "--every 0.0 does not lie in 0.1 …" in capsys.readouterr().err


#: The command, whose questions have as much time as a test.
PATIENT = f"""
import sys
from headrace_server.cli import main
from headrace_server.watch.http_client import HttpClient
HttpClient.status.__defaults__ = False, {10 * PATIENCE_S}
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """A terminal of a size, with ``headrace top`` on it."""

    def __init__(self, address: str, lines: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.resize(lines, columns)
        command = [sys.executable, "-c", PATIENT, "top", "--every", "0.1", "--http", address]
        self.process = WarmPopen(command, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.said = b""

    def resize(self, lines: int, columns: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def until(self, true: Callable[[], object]) -> None:
        """Read until a condition holds, or the writer has closed."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise AssertionError(self.said[-2000:])
            if select.select((self._master,), (), (), 0.1)[0]:
                try:
                    self.said += os.read(self._master, 65536)
                except OSError:  # the other end is closed
                    return

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.until(lambda: False)
        os.close(self._master)
        return self.process.wait(PATIENCE_S)

    @property
    def screens(self) -> list[list[str]]:
        """The screens shown, line by line and without colors; the last may be half written."""
        said = self.said.decode(errors="replace").replace("\r\r\n", "\r\n")
        shown = said.split("\x1b[H")[1:]
        return [
            re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.partition("\x1b[J")[0])
            .removesuffix("\r\n")
            .split("\r\n")
            for screen in shown
        ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_on_a_terminal_it_goes_on_until_a_signal_and_leaves_it_as_it_was(
    number: int, served: Served
):
    terminal = Terminal(served.address)
    terminal.until(lambda: terminal.said.count(b"serving") >= 3)
    assert terminal.end(number) == 0
    assert terminal.said.startswith(ENTERED) and terminal.said.endswith(LEFT)


def test_ctrl_c_is_heard_while_a_server_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        terminal = Terminal(f"127.0.0.1:{silent.getsockname()[1]}")
        asking, _ = silent.accept()  # it asks, and waits
        with asking:
            assert terminal.end(signal.SIGINT) == 0
    assert terminal.said.startswith(ENTERED) and terminal.said.endswith(LEFT)


def test_a_window_that_becomes_larger_or_smaller_is_filled_and_not_more(
    served: Served, capsys: pytest.CaptureFixture[str]
):
    served.feeds = {f"feed-{i}": feed() for i in range(6)}
    assert main(["top", "--http", served.address]) == 0
    whole = len(capsys.readouterr().out.splitlines())
    assert 24 < whole < 50
    terminal = Terminal(served.address)
    for lines, columns in ((24, 80), (50, 200), (5, 30)):
        terminal.resize(lines, columns)
        wanted = min(lines, whole)
        terminal.until(
            lambda n=wanted: len(terminal.screens) > 1 and len(terminal.screens[-2]) == n
        )
        last = terminal.screens[-2]
        assert max(map(len, last)) <= columns
        assert ("more lines" in last[-1]) == (lines < whole)
    assert terminal.end(signal.SIGINT) == 0


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(served: Served):
    terminal = Terminal(served.address)
    terminal.until(lambda: b"serving" in terminal.said)
    terminal.process.send_signal(signal.SIGTSTP)
    terminal.until(lambda: terminal.said.endswith(LEFT))
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(lambda: terminal.said.count(ENTERED) == 2)
    assert terminal.end(signal.SIGINT) == 0 and terminal.said.endswith(LEFT)


def test_a_screen_is_emptied_line_by_line_before_it_is_written():
    """A terminal at its edge would take the last character for the rest of the line."""
    size = os.terminal_size((3, 3))
    assert screen(["abcd", "e"], size) == "\x1b[H\x1b[Kabc\r\n\x1b[Ke\r\n\x1b[J"
    assert screen(["a", "b", "c"], size) == "\x1b[H\x1b[Ka\r\n\x1b[Kb\r\n\x1b[Kc"
    full = screen(["a", "b", "c", "d"], os.terminal_size((12, 3)))
    assert full.split("\x1b[K")[1:] == ["a\r\n", "b\r\n", "… 2 more lin"]


def test_lines_are_cut_to_the_width_and_color_takes_none_of_it():
    assert fitted(["abcdef", "\x1b[31mab\x1b[0mcd"], 3) == ["abc", "\x1b[31mab\x1b[0mc\x1b[0m"]
    assert fitted(["日本語"], 4) == ["日本"]
