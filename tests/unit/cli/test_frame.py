"""The frame of all commands: what is imported, and how a command ends."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable

import pytest

from headrace_server.cli import frame
from headrace_server.cli.options import Option
from tests.contract.interpreter import run
from tests.patience import PATIENCE_S

OPTIONS = (Option("word", "text", "what is said", default="well"),)


@pytest.fixture
def greet(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Namespace], int]], None]:
    """Add a command ``headrace greet``."""

    def declare(does: Callable[[Namespace], int]) -> None:
        declared = frame.with_options(*OPTIONS)(does)
        monkeypatch.setitem(frame.COMMANDS, "greet", "say a word")
        monkeypatch.setattr(frame, "command", {"greet": declared}.__getitem__)

    return declare


def test_a_light_installation_names_the_extra_before_a_file_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)  # importing it raises ImportError
    assert frame.main(["serve", "nofile.py:feeds"]) == 1
    assert "headrace serve needs google_crc32c" in (told := capsys.readouterr().err)
    assert "pip install '.[server]'" in told


def test_a_closed_output_takes_no_exit_code_away(greet, monkeypatch):
    """As where a program that starts services closes it."""
    monkeypatch.setattr(sys, "stdout", None)
    greet(lambda options: print("a word") or 7)
    assert frame.main(["greet"]) == 7


def test_a_reader_that_goes_away_ends_a_command_without_a_word():
    script = (
        "import headrace_server.cli.frame as frame\n"
        "def says(options):\n"
        "    for _ in range(100000): print('word')\n"
        "    return 0\n"
        "frame.COMMANDS['greet'] = 'say words'\n"
        "frame.command = lambda name: frame.with_options()(says)\n"
        "raise SystemExit(frame.main(['greet']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"word\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 1


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_waits_for_no_numpy_and_no_zmq(words):
    script = f"""
import sys
from headrace_server.cli import main
try:
    main({words})
except SystemExit:
    print("modules", *(m for m in ("numpy", "zmq", "msgpack", "asyncio") if m in sys.modules))
"""
    assert run(script).splitlines()[-1] == "modules"


def test_ctrl_c_while_a_command_is_imported_is_answered_as_later():
    script = """
import sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "headrace_server.cli.frame":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
from headrace_server.cli import main
print("code", main(["status"]))
"""
    assert run(script + "assert 'logging' not in sys.modules").splitlines() == ["code 130"]
