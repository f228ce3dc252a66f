"""The wheel and the sdist are whole, and a fresh environment with the wheel does the quickstart."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import headrace
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.tools, pytest.mark.slow]


def _output(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with a wheel and a sdist."""
    for tool in ("build", "twine"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"needs {tool}")
    target = tmp_path_factory.mktemp("dist")
    _output(sys.executable, "-m", "build", "--outdir", target, ROOT)
    return target


def test_an_index_accepts_both_and_the_sdist_has_every_file_of_the_repository(built):
    _output(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())
    if not (ROOT / ".git").exists():
        pytest.skip("which files there are is known to git alone")
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    known = set(_output("git", "ls-files").splitlines())
    assert not known - members


def test_a_fresh_environment_with_the_wheel_does_the_quickstart(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    _output(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    _output(python, "-m", "pip", "install", "--quiet", wheel)
    listed = _output(python, "-m", "pip", "list", "--format=freeze").splitlines()
    names = {line.partition("=")[0].lower() for line in listed}
    assert names - {"pip", "setuptools"} == {"headrace", "pyzmq", "msgpack", "numpy"}
    version = _output(tmp_path / "venv" / "bin" / "headrace", "--version")
    assert version == f"headrace {headrace.__version__}\n"
    _output(python, "-m", "pip", "install", "--quiet", f"{wheel}[server]")
    shutil.copy(ROOT / "tests" / "contract" / "document.py", tmp_path)
    ports = str(free_port()), str(free_port())
    page = ROOT / "docs" / "quickstart.md"
    assert _output(python, tmp_path / "document.py", page, ROOT, *ports, cwd=tmp_path)
