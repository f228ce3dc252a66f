"""Runs the code of one document, block by block, in the current directory.

    python document.py README.md REPOSITORY PORT HTTP_PORT

    ```python        runs; all blocks of a document share one namespace
    ```python        with ``# name.py`` as its first line: becomes that file
    ```toml          with ``# name.toml`` as its first line: becomes that file
    ```sh            headrace serve: in the background, until the end; other headrace and
                     python and cp lines: to their end; make and pip lines: their targets and
                     extras exist;
                     docker and kubectl lines: what they name of the repository exists, and
                     what they serve are options of headrace serve

Nothing that runs is hidden from the reader.  The port 5557 of the documents, and 8080 of HTTP, are
replaced by free ones.
"""

from __future__ import annotations

import linecache
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

_DEFAULT_PORT = "5557"
_DEFAULT_HTTP = "127.0.0.1:8080"
_LIMIT_S = 200
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w-]+\.\w+)\n")


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str
    line: int


def blocks(document: str) -> list[Block]:
    """The blocks of a document in their order."""
    found = []
    for match in _BLOCK.finditer(document):
        line = document.count("\n", 0, match.start()) + 1
        found.append(Block(*match.groups(), line))
    return found


class Runner:
    """One document."""

    def __init__(self, name: str, repository: Path, port: str, http_port: str) -> None:
        self._name = name
        self._repository = repository
        self._ports = {_DEFAULT_PORT: port, _DEFAULT_HTTP: f"127.0.0.1:{http_port}"}
        self._namespace: dict[str, Any] = {"__name__": "document"}
        self._servers: list[subprocess.Popen[str]] = []

    def run(self, document: str) -> None:
        try:
            for block in blocks(document):
                text = block.text
                for told, free in self._ports.items():
                    text = text.replace(told, free)
                if block.language == "sh":
                    for line in text.replace("\\\n", " ").splitlines():
                        self._command(shlex.split(line, comments=True))
                elif block.language == "python":
                    self._python(text, block.line)
                elif block.language == "toml":
                    self._file(text)
            for server in self._servers:
                self._stop(server)
        finally:
            for server in self._servers:
                server.kill()
                server.wait()

    def _python(self, text: str, line: int) -> None:
        if self._file(text):
            return
        # Tracebacks then name the line of the document.
        whole = "\n" * line + text
        cell = f"<{self._name}:{line}>"  # a notebook's cell: its source can be looked up
        linecache.cache[cell] = len(whole), None, whole.splitlines(keepends=True), cell
        code = compile(whole, cell, "exec")
        exec(code, self._namespace)

    def _file(self, text: str) -> bool:
        """Write a block that bears the name of a file; whether it does."""
        named = NAMED.match(text)
        if named:
            Path(named[1]).write_text(text)
        return named is not None

    def _command(self, words: list[str]) -> None:
        match words:
            case []:
                return
            case ["headrace", "serve", *rest] if "--help" not in rest:
                self._serve(words)
            case ["headrace", *rest]:
                self._finish([sys.executable, "-m", "headrace_server.cli", *rest])
            case ["cp", *sources, target]:
                for source in sources:
                    shutil.copy(source, target)
            case ["python", *rest]:
                self._finish([sys.executable, *rest])
            case ["make", *targets]:
                known = (self._repository / "Makefile").read_text()
                for target in targets:
                    assert re.search(rf"^{target}:", known, re.MULTILINE), f"no target {target}"
            case ["docker" | "kubectl", *rest]:
                self._containers(rest)
            case ["pip", "install", wanted]:
                self._check_extras(wanted)
            case _:
                raise AssertionError(f"{' '.join(words)}: no test knows how to run this line")

    def _check_extras(self, wanted: str) -> None:
        parts = re.fullmatch(r"(?:\.|headrace)(?:\[([\w,]+)\])?", wanted)
        assert parts, f"pip install {wanted}: not this project"
        project = tomllib.loads((self._repository / "pyproject.toml").read_text())["project"]
        extras = set(parts[1].split(",")) if parts[1] else set()
        missing = extras - set(project["optional-dependencies"])
        assert not missing, f"pip install {wanted}: no extras {missing}"

    def _containers(self, words: list[str]) -> None:
        """Those programs are not here; ``make container-test`` runs such lines where they are."""
        if words[0] == "compose":
            assert (self._repository / "docker-compose.yml").exists()
        for word in words:
            source = word.split(":")[0].removeprefix("./")
            if source.startswith(("docker/", "packaging/", "examples")):
                assert (self._repository / source).exists(), f"there is no {source}"
        if "serve" in words:
            served = words[words.index("serve") :]
            given = {word.partition("=")[0] for word in served if word.startswith("--")}
            command = [sys.executable, "-m", "headrace_server.cli", "serve", "--help"]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            unknown = given - set(re.findall(r"--[a-z][a-z-]+", told))
            assert not unknown, f"headrace serve has no {unknown}"

    def _finish(self, command: list[str]) -> None:
        subprocess.run(command, check=True, timeout=_LIMIT_S)

    def _serve(self, words: list[str]) -> None:
        server = subprocess.Popen(
            [sys.executable, "-m", "headrace_server.cli", *words[1:]],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._servers.append(server)
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said.startswith("headrace serves at"), f"{' '.join(words)}: said {said!r}"

    def _stop(self, server: subprocess.Popen[str]) -> None:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        code = server.wait(_LIMIT_S)
        assert code == 0, f"a server ended with exit code {code}"


def main() -> None:
    document, repository = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, "")
    Runner(document.name, repository, *sys.argv[3:]).run(document.read_text())


if __name__ == "__main__":
    main()
