"""``python notebook.py FILE``: run the code cells of a notebook, one after the other."""

from __future__ import annotations

import json
import linecache
import sys


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        cells = json.load(file)["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        name, code = f"<cell {number}>", "".join(cell["source"])
        linecache.cache[name] = len(code), None, code.splitlines(True), name  # tf.function reads it
        exec(compile(code, name, "exec"), globals())


if __name__ == "__main__":
    main()
