"""A fresh interpreter that imports what this one imports, for tests of what an import does."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.patience import PATIENCE_S

#: Goes before a script: imports of these packages fail as if they were not installed.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(script: str, *, without: tuple[str, ...] = ()) -> str:
    """Return the output of a script.  ``without``: packages to hide from it."""
    if without:
        script = f"BLOCKED = {without!r}\n{BLOCKER}\n{script}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_path() -> str:
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
