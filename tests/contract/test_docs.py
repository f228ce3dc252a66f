"""The documents are true: their code runs, their links lead somewhere, their options exist."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_server.cli.table import COMMANDS, command

from . import commands_page
from .document import blocks

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
#: Languages of blocks.  What is code is run; the rest is for reading.
LANGUAGES = {"python", "sh", "setup", "text", "toml", ""}

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


def _python_path() -> str:
    """What this process imports from, for one that runs in another directory."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _runs(path: Path) -> bool:
    return any(block.language in ("python", "sh") for block in blocks(path.read_text()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if _runs(path)], ids=_name)
def test_the_code_of_a_document_runs(path: Path, tmp_path: Path) -> None:
    runner = ROOT / "tests" / "contract" / "document.py"
    process = subprocess.Popen(
        [sys.executable, runner, path, ROOT, str(_free_port()), str(_free_port())],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, **QUIET, "PYTHONPATH": _python_path()},
    )
    try:
        output, _ = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{_name(path)} did not end:\n{output[-3000:]}")
    assert process.returncode == 0, output[-5000:]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_block_of_a_document_is_of_a_kind_that_is_tested_or_no_code(path: Path) -> None:
    for block in blocks(path.read_text()):
        assert block.language in LANGUAGES, f"line {block.line}: {block.language}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_relative_link_of_a_document_leads_somewhere(path: Path) -> None:
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), target
        assert linked == ROOT or ROOT in linked.parents, f"{target} leaves the repository"
        assert not anchor or anchor in _anchors(linked), target


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_documents_of_the_project_are_found() -> None:
    names = {_name(path) for path in DOCUMENTS}
    assert {"README.md", "CHANGELOG.md", "docs/quickstart.md", "docs/failure.md"} <= names


def test_the_page_of_commands_says_what_their_tables_say() -> None:
    page = commands_page.PAGE.read_text()
    assert commands_page.rewritten(page) == page, "make reference"
    for name in COMMANDS:
        assert f"\n## headrace {name}\n" in page
        assert f"<!-- generated: options of {name} -->" in page
        assert f"\nheadrace {name} " in page, "no example that runs"


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_every_command_that_a_document_names_exists(path: Path) -> None:
    named = set(re.findall(r"`headrace ([a-z]+)", path.read_text()))
    named -= {"serves", "replays"}  # what commands print
    assert named <= set(COMMANDS), sorted(named - set(COMMANDS))


def test_every_option_that_a_document_names_exists_somewhere() -> None:
    known = {option.flag for name in COMMANDS for option in command(name).options}
    known |= {option.replace("--", "--no-") for option in known}
    programs = [f"tests/{name}/__main__.py" for name in ("bench", "chaos", "scale", "trials")]
    for program in programs:
        known |= set(re.findall(r'"(--[a-z][a-z-]+)"', (ROOT / program).read_text()))
    known |= {"--help", "--version"}
    known |= {"--build", "--build-arg", "--ipc", "--name", "--network", "--profile", "--shm-size"}
    known |= {
        "--volumes",
        "--now",
        "--health-cmd",
        "--no-healthcheck",
    }  # those are docker's, and systemctl's
    for path in DOCUMENTS:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text()))
        assert named <= known, f"{_name(path)}: {sorted(named - known)}"
