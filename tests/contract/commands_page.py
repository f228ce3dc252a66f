"""The generated parts of docs/commands.md, from the tables that the commands are made of.

    python -m tests.contract.commands_page      writes them anew

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the rest is written by
hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace_server.cli.exits import MEANINGS
from headrace_server.cli.frame import COMMANDS, command
from headrace_server.process.option import Option

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
_PART = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated(name: str) -> str:
    """The lines of a part."""
    if name == "commands":
        rows = [f"| [`{n}`](#headrace-{n}) | {summary} |" for n, summary in COMMANDS.items()]
        return _table("| | |", rows)
    if name == "exit codes":
        return _table("| code | |", [f"| {code} | {text} |" for code, text in MEANINGS.items()])
    return _table("| option | default | |", [*map(_row, command("serve").options)])


def _table(head: str, rows: list[str]) -> str:
    line = "| --- " * (head.count("|") - 1) + "|"
    return "\n".join([head, line, *rows, ""])


def _row(option: Option) -> str:
    value = option.placeholder.replace("|", "\\|")
    if option.positional:
        written = f"{value} …" if option.many else value
    else:
        written = f"{option.flag} {value}".rstrip()
    cells = [f"`{written}`"]
    told = option.default_text
    cells.append(f"`{told}`" if told and not option.absent and option.default is not True else told)
    cells.append(option.meaning + (f" ({option.allowed})" if option.allowed else ""))
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def rewritten(page: str) -> str:
    """The page with its generated parts as they should be."""
    return _PART.sub(lambda m: f"{m[1]}{generated(m[2])}{m[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
