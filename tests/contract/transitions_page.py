"""The diagrams of docs/transitions.md, drawn from the tables in the code.

    python -m tests.contract.transitions_page      writes them anew

A part stands between ``<!-- generated: KIND -->`` and ``<!-- end -->``; the rest is written by
hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from headrace_server.shaping.input import INPUT
from headrace_server.shaping.transitions import Transitions
from headrace_server.worker.sessions import SESSION

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transitions.md"
TABLES = {table.kind: table for table in (SESSION, INPUT)}
_PART = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def drawn(table: Transitions) -> Iterator[str]:
    """Yield the lines of a diagram: by state, the events with their moves, and errors."""
    wide, long = max(map(len, table.states)), max(map(len, table.moves))
    for state in table.states:
        start = state
        for event, moves in table.moves.items():
            if state in moves:
                following, effect = moves[state]
                arrow = f"─► {following:{wide}}  {'' if effect is None else effect}"
                yield f"{start:{wide}}  {event:{long}}  {arrow}".rstrip()
                start = ""
        refused: dict[str, list[str]] = {}
        for event, (text, states) in table.errors.items():
            if state in states:
                refused.setdefault(text, []).append(event)
        for text, events in refused.items():
            yield f"{start:{wide}}  ✗ {' / '.join(events)}: error, it {text}"
            start = ""
        yield ""


def _generated(kind: str) -> str:
    return "\n".join(["```text", *drawn(TABLES[kind])]).rstrip() + "\n```\n"


def rewritten(page: str) -> str:
    """The page with its generated parts as they should be."""
    return _PART.sub(lambda m: f"{m[1]}{_generated(m[2])}{m[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
