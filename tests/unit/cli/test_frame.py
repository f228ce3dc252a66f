"""The frame of all commands: what is imported, and how a command ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[list[str]]:
    """Give the arguments of ``headrace serve`` for a feed; signals are handled as before."""
    feeds = tmp_path / "feeds.py"
    feeds.write_text(
        "import headrace_server as hs\nnumbers = hs.from_examples([{'a': 1}]).batch(1)\n"
    )
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    yield [f"{feeds}:numbers", "--bind", "tcp://127.0.0.1:*"]
    for number, handler in handlers:
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--workers", "2000"], "--workers must be between 1 and 1024, not 2000"),
        (["--state-dir", ""], "--state-dir '' is no path"),
        (
            ["--bind", "tcp://0.0.0.0:*"],
            "give --keys DIR (headrace keygen DIR makes them), or --insecure where",
        ),
        (["--state-dir", "/dev/null"], "--state-dir '/dev/null' is not a directory"),
        (["--resume", "{}"], "--resume"),
        (["--state-dir", "/proc"], "--state-dir '/proc' can not be used: "),
        (["--http", "nowhere"], "--http 'nowhere'"),
        (["--keys", "/absent"], "--keys '/absent'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_mistake_in_an_option_names_it_as_the_command_line_does(
    words: list[str], text: str, numbers: list[str], capsys: pytest.CaptureFixture[str]
):
    assert frame.main(["serve", *numbers, *words]) == 2
    assert text in capsys.readouterr().err


def test_a_light_installation_names_the_extra_before_a_file_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)  # importing it raises ImportError
    assert frame.main(["serve", "nofile.py:feeds"]) == 1
    assert "headrace serve needs google_crc32c" in (told := capsys.readouterr().err)
    assert "pip install '.[server]'" in told


@pytest.mark.parametrize("content", [b"", b"no token", b"\xff\xfe"])
def test_a_file_that_holds_no_token_of_a_snapshot_is_named(
    content: bytes, numbers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file.json").write_bytes(content)
    assert frame.main(["serve", *numbers, "--resume", str(tmp_path / "file.json")]) == 2
    assert re.search(r"/file.json: content='.*' is not JSON", capsys.readouterr().err)


def test_a_closed_output_takes_no_exit_code_away(greet, monkeypatch: pytest.MonkeyPatch):
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
def test_help_waits_for_no_numpy_and_no_zmq(words: list[str]):
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
