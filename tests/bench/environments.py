"""Interpreters of contestants: this one, or one of their own for peers that pin other versions.

    DIRECTORY/environments/NAME     made once, by venv and pip, when a contestant first needs it
    DIRECTORY/environments/COMMIT   headrace as it was then, by git; found before what is installed

A peer that can not be had is left out and said so; it never ends a run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["EARLIER", "EARLIER_COMMIT", "REQUIREMENTS", "Absent", "Environments"]

#: By what the names of the contestants begin with.
REQUIREMENTS = {
    "Grain": ("grain==0.2.18",),
    "Reverb": ("dm-reverb[tensorflow]==0.14.0",),
    "TransferQueue": ("torch==2.13.0", "TransferQueue==0.1.11"),
}
#: How the names of contestants begin that run an earlier headrace: the last before features were
#: deleted and the dispatch was rebuilt, so a step back in speed shows.
EARLIER, EARLIER_COMMIT = "earlier", "09cb646f"
_PACKAGES = ("client", "server", "proto")
_ROOT = Path(__file__).parents[2]
#: Packages that the benchmark itself imports.
_COMMON = ("numpy", "psutil", "pyzmq", "google-crc32c")
#: Packages of the environment that runs the benchmark.
MODULES = {"torch": "torch"}
_PIP_S = 900


class Absent(Exception):
    """A contestant that can not run here, and why."""


class Environments:
    """Those under a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "environments"
        self._absent: dict[str, str] = {}

    def python(self, contestant: str) -> str:
        """The interpreter that runs it, made if need be."""
        for prefix, module in MODULES.items():
            if contestant.startswith(prefix) and importlib.util.find_spec(module) is None:
                raise Absent(f"{module} is not installed")
        for name, requirements in REQUIREMENTS.items():
            if contestant.startswith(name):
                return self.made(name, (*_COMMON, *requirements))
        return sys.executable

    def packages(self, contestant: str) -> list[Path]:
        """Directories whose packages it uses instead of those that are installed."""
        if not contestant.startswith(EARLIER):
            return []
        home = self._directory / EARLIER_COMMIT
        if not home.exists():
            new = home.with_suffix(".part")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            archive = new / "packages.tar"
            of = ("git", "-C", str(_ROOT), "archive", "--output", str(archive), EARLIER_COMMIT)
            run_command(*of, *_PACKAGES)
            run_command("tar", "-x", "-f", str(archive), "-C", str(new))
            new.rename(home)
        return [home / package for package in _PACKAGES]

    def made(self, name: str, requirements: tuple[str, ...]) -> str:
        """The interpreter of an environment with these packages."""
        if name in self._absent:
            raise Absent(self._absent[name])
        home = self._directory / name
        wanted = hashlib.sha256(repr((sys.version, requirements)).encode()).hexdigest()[:16]
        done = home / f"done-{wanted}"
        python = str(home / "bin" / "python")
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            print(f"making an environment for {name}", file=sys.stderr)
            try:
                run_command(sys.executable, "-m", "venv", str(home))
                run_command(python, "-m", "pip", "install", "--quiet", *requirements)
            except Absent as error:
                self._absent[name] = f"{' '.join(requirements)} can not be installed: {error}"
                raise Absent(self._absent[name]) from None
            done.touch()
        return python


def run_command(*command: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absent(str(error)) from None
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.startswith(("ERROR", "fatal"))]
        raise Absent((said or [f"no word of {command[0]}"])[-1])
