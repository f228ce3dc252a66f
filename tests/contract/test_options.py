"""No option is accepted and then ignored: each is read where it is said to take effect.

    argument of a public function   read in the function's body, or all by ``vars()``
    option of a command             read by the command
    entry of a declaration          read where chunks and batches are made, or by the machines
    field of the server's settings  read by a process of the server

It is not shown here that reading has the right effect: that is for the tests of each part.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import remote
from headrace_server.cli.frame import COMMANDS, command
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.option import Option
from headrace_server.process.settings import Limits, RunSettings, options_of

SERVER = Path(hs.__file__).parent


def _public(of: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, and methods of classes, that a module shows."""
    for name in of.__all__:
        thing = getattr(of, name)
        if inspect.isfunction(thing):
            yield f"{of.__name__}.{name}", thing
        elif inspect.isclass(thing) and not issubclass(thing, BaseException):
            for base in inspect.getmro(thing):
                for method, function in vars(base).items():
                    public = not method.startswith("_") or method == "__init__"
                    if public and inspect.isfunction(function) and "headrace" in base.__module__:
                        yield f"{of.__name__}.{name}.{method}", function


#: Classes that users subclass.
_INTERFACES = ("IndexedSource", "StreamSource", "Stage", "Shape", "RowShaper")
FUNCTIONS = dict([*_public(hs), *_public(headrace)])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_argument_of_a_public_function_is_read(name: str) -> None:
    function = inspect.unwrap(FUNCTIONS[name])
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # what dataclasses make of their fields
        return
    body = tree.body[0]
    assert isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef))
    read = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    arguments = set(inspect.signature(function).parameters) - {"self", "cls"}
    if any(ast.unparse(node) == "vars()" for node in ast.walk(body)):
        return  # they become entries of the declaration
    interfaces = tuple(f"headrace_server.{kind}." for kind in _INTERFACES)
    if name.endswith("__exit__") or name.startswith(interfaces):
        return  # what subclasses define reads the arguments
    assert arguments <= read, f"{name} ignores {sorted(arguments - read)}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_read(name: str) -> None:
    asked = command(name)
    module = inspect.getmodule(asked.run)
    assert module is not None
    text = "".join(
        inspect.getsource(part)
        for part in {module, *(m for m in map(inspect.getmodule, vars(module).values()) if m)}
        if part.__name__.startswith("headrace_server.cli")
    )
    passed: tuple[Option, ...] = ()
    if name == "serve":
        passed = options_of(RunSettings)
        assert "for one in options_of(RunSettings)" in inspect.getsource(asked.run)
    everyone = r"|getattr\(options, option\.name\)" if name == "bench" else ""
    asker = r"|askers\(options\)"
    for option in set(asked.options) - set(passed):
        reads = rf"options\.{option.name}\b|getattr\(options, \"{option.name}\"{everyone}"
        if option in (remote.SERVERS, remote.TOKEN):
            reads += asker
        assert re.search(reads, text), f"headrace {name} ignores {option.flag}"


FEATURES = {
    "k": hs.scalar("bytes"),
    "i": hs.scalar("int64"),
    "p": hs.scalar("float32"),
    "x": hs.sequence("float32"),
}
RECORDS = hs.read_tfrecord("/data/a", FEATURES)
#: Together they have every source, stage and shape.
PIPELINES = [
    hs.read_csv("/data/a.csv", {"i": hs.scalar("int64")}).batch(2),
    hs.read_npz("/data/a.npz", ragged={"x": "at"}).batch(2),
    hs.from_function("module:function", 1, shards=2, two=2).batch(2),
    hs.from_examples([{"i": 1}]).batch(2),
    RECORDS.shuffle(1)
    .repeat(2)
    .map("m:f", schema=FEATURES)
    .filter("m:f")
    .select(["i", "x", "p", "k"])
    .bucket("i", 2, 2, keep_input="i"),
    RECORDS.rejection_sample("p").resample_at_rate("p").bucket_by_sequence_length("x", 2, [5]),
    RECORDS.stratified_sample("i", [0.5, 0.5]).weighted_resample("p", 1.0).batch(2),
    RECORDS.stratified_sample_unknown_dist("i", [0.5, 0.5], 2),
    RECORDS.batch_sequences_with_states("k", ["x"], ["i"], "i", {"h": np.zeros(2)}, 4, 2),
]


@cache
def _keys_read() -> frozenset[str]:
    """Strings by which something is looked up, in all that reads and makes batches."""
    keys: set[str] = set()
    paths: list[Path] = []
    for folder in ("shaping", "reading", "making", "worker"):
        paths += (SERVER / folder).rglob("*.py")
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            sought: list[ast.AST] = []
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                sought = [node.slice]
            elif isinstance(node, ast.Call):
                sought = list(node.args)
            keys |= {str(n.value) for n in sought if isinstance(n, ast.Constant)}
            if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "open"):
                # Options of a source, a stage or a shape are arguments of its class.
                arguments = {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
                keys |= arguments & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return frozenset(keys)


def _options(pipeline: hs.Pipeline) -> Iterator[tuple[str, str]]:
    declaration = pipeline.declaration()
    for part in (declaration.source, *declaration.stages, declaration.shape):
        yield from ((part.kind, key) for key in part.options)


def test_every_entry_of_a_declaration_is_read() -> None:
    entries = {entry for pipeline in PIPELINES for entry in _options(pipeline)}
    assert {kind for kind, _ in entries} >= {"csv", "npz", "function", "bucket", "sequences", "map"}
    ignored = sorted(entry for entry in entries if entry[1] not in _keys_read())
    assert not ignored, ignored


def test_every_argument_of_run_is_read() -> None:
    text = "".join(path.read_text() for path in (SERVER / "server").glob("*.py"))
    names = {one.name for one in dataclasses.fields(RunSettings)}
    passed = {one.name for one in dataclasses.fields(Limits)}  # fields of RunConfig: see below
    ignored = {n for n in names - passed if not re.search(rf"\bsettings\.{n}\b", text)}
    assert not ignored, sorted(ignored)


@pytest.mark.parametrize("kind", [RunConfig, FeedConfig])
def test_every_setting_of_a_server_is_read(kind: type) -> None:
    declared = ("config.py", "settings.py")
    text = "".join(path.read_text() for path in SERVER.rglob("*.py") if path.name not in declared)
    text += inspect.getsource(RunConfig.ahead)
    for field in dataclasses.fields(kind):
        assert re.search(rf"\.{field.name}\b", text), f"{kind.__name__}.{field.name} is ignored"
