"""No module of shaping or leasing can reach a clock, a file or a peer."""

import ast
from pathlib import Path

import pytest

import headrace_server

SERVER = Path(headrace_server.__file__).parent
PURE = [SERVER / "shaping", SERVER / "leasing"]
FORBIDDEN = frozenset(
    {"asyncio", "builtins", "concurrent", "ctypes", "datetime", "fcntl", "glob", "http", "io"}
    | {"importlib", "logging", "mmap", "multiprocessing", "os", "pathlib", "pickle", "queue"}
    | {"random", "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "ssl"}
    | {"subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid", "weakref", "zmq"}
)
FORBIDDEN_NAMES = frozenset({"open", "print", "eval", "exec", "__import__", "hash"})
ABOVE = tuple(
    f"headrace_server.{path.name}"
    for path in SERVER.iterdir()
    if path.is_dir() and path not in PURE
)


def offences(source: str) -> list[str]:
    """Yield the offences of a module, as ``line: what``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
            if node.level > 1 and not module.startswith("leasing"):
                found.append(f"{node.lineno}: import from a parent package")
            if node.level:
                names = []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}".replace("np.", "numpy.")]
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
            found.append(f"{node.lineno}: {node.id}")
        imported = isinstance(node, (ast.Import, ast.ImportFrom))
        for name in names:
            outside = imported and (name.split(".")[0] in FORBIDDEN or name.startswith(ABOVE))
            if outside or name == "numpy.random" or name.startswith("numpy.random."):
                found.append(f"{node.lineno}: {name}")
    return found


@pytest.mark.parametrize(
    "path",
    sorted(path for room in PURE for path in room.rglob("*.py")),
    ids=lambda path: str(path.relative_to(SERVER)),
)
def test_a_pure_module_holds_no_clock_file_peer_or_global_chance(path):
    assert offences(path.read_text()) == []
