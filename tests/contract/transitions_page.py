"""The diagrams of docs/transitions.md, drawn from the tables in the code.

    python -m tests.contract.transitions_page      writes them anew

A part stands between ``<!-- generated: KIND -->`` and ``<!-- end -->``; the rest is written by
hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace_server.core.claims import CLAIM
from headrace_server.core.lease import LEASE
from headrace_server.core.partition import PARTITION
from headrace_server.worker.sessions import SESSION

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transitions.md"
TABLES = {table.kind: table for table in (LEASE, CLAIM, SESSION, PARTITION)}
_PART = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _generated(kind: str) -> str:
    return "\n".join(["```text", *TABLES[kind].drawn()]).rstrip() + "\n```\n"


def rewritten(page: str) -> str:
    """The page with its generated parts as they should be."""
    return _PART.sub(lambda m: f"{m[1]}{_generated(m[2])}{m[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
