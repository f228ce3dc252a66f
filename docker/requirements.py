"""What pyproject.toml asks for, one requirement a line: its dependencies, and those of some extras.

python requirements.py pyproject.toml [EXTRA ...]

An image installs them before it sees the code, so that a change of the code builds in seconds.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [project["dependencies"], *(optional[extra] for extra in sys.argv[2:])]
    print(*(line for lines in wanted for line in lines), sep="\n")


if __name__ == "__main__":
    main()
