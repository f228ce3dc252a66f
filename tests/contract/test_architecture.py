"""The modules, methods and rooms that the pages on architecture name are there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "server" / "headrace_server"
_PATH = re.compile(
    r"`((?:headrace|headrace_proto|(?!server/headrace_server)[a-z_]+)/[a-z_/]+(?:\.py|/))`"
)
_ROOTS = {
    "headrace": ROOT / "client",
    "headrace_proto": ROOT / "proto",
    "tests": ROOT,
}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/inside.md"])
def test_every_module_that_a_page_names_is_there(page):
    named = _PATH.findall((ROOT / page).read_text())
    assert len(named) > 20
    gone = [name for name in named if not (_ROOTS.get(name.split("/")[0], SERVER) / name).exists()]
    assert not gone


def test_every_method_that_a_page_names_is_there():
    methods: dict[str, set[str]] = defaultdict(set)
    for package in ("server/headrace_server", "client/headrace"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    methods[node.name] |= {of.name for of in node.body if hasattr(of, "name")}
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", (ROOT / "docs/inside.md").read_text())
    assert len(named) > 50
    assert not [f"{kind}.{name}" for kind, name in named if name not in methods[kind]]


def test_every_room_of_the_server_has_its_line():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.parent.name for path in SERVER.glob("*/__init__.py")}
    assert rooms == {room for room in rooms if f"| `{room}` |" in page}


@pytest.mark.parametrize("room", ["shaping", "leasing"])
def test_a_pure_room_uses_no_global_chance_no_file_and_no_salted_hash(room):
    """Its imports are of import-linter."""
    forbidden = re.compile(r"\b(np|numpy)\.random\b|\b(open|print|eval|exec|__import__|hash)\(")
    modules = [*(SERVER / room).rglob("*.py")]
    assert modules and not [path for path in modules if forbidden.search(path.read_text())]
