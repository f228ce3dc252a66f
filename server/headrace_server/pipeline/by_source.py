"""Functions of a session, given to workers as the text of a module.

    hs.by_source(fn) ─► .map(fn) ─► text of a module ─► hs.run ─► RUN_DIRECTORY/source/NAME.py

A module holds the function, the functions of the session that it calls, the imports of what else it
uses, and constants of plain data.  All that is text: nothing is pickled, and only the module's name
reaches a worker, which imports it.  The run directory belongs to the user alone (0700), and goes
with the server.

Values that no text stands for are refused: closures, lambdas, objects, classes of the session.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from headrace_proto.errors import kind_of

from .declaration import Declaration
from .fingerprint import code_digest, codes_in, function_names, global_names

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "__headrace_by_source__"
_ANNOTATIONS = __future__.annotations.compiler_flag
#: Characters of a constant; more of them belong into a file.
_MOST_TEXT = 10_000
_REMEDY = "put what it needs into a module file and import that, or give it as an argument"

_texts: dict[str, str] = {}  # of this process: by name of the module


def by_source(fn: _Function) -> _Function:
    """Let workers use a function of a notebook or a script, by its source text.

    Give the result to ``.map``, ``.filter`` or another method that takes a function, or write
    ``@hs.by_source`` above the ``def``.  The text includes the functions of the same session that
    it calls, and imports and constants of plain data, as they are when the pipeline is declared.
    Each function has a module of its own: they share no variables.  Closures, lambdas, decorated
    functions, and those that use objects or classes of the session are a ``TypeError``.  Functions
    of modules are imported as usual.  Workers read the text from a file that only the user of the
    server can read.
    """
    if not isinstance(fn, FunctionType):
        raise TypeError(f"by_source: {fn!r:.80} is {kind_of(fn)}, not a function")
    setattr(fn, _MARK, True)
    return fn


def is_by_source(fn: Any) -> bool:
    """Return whether workers get it by its text: marked, and in no module that can be imported."""
    if not getattr(fn, _MARK, False):
        return False
    return fn.__module__ in ("__main__", "__mp_main__") or fn.__module__ not in sys.modules


def name_by_source(fn: Any) -> str:
    """Return the name by which workers find it.  TypeError names the part without text."""
    module = _Module(fn)
    text = module.text()
    digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    name = f"headrace_source_{fn.__name__}_{digest}"
    _texts[name] = text
    return f"{name}:{fn.__name__}"


def source_directory(run_directory: str | os.PathLike[str]) -> Path:
    """Return the directory of such modules."""
    return Path(run_directory) / "source"


def write_sources(declarations: Iterable[Declaration], run_directory: Path) -> None:
    """Write the modules that pipelines need, if any, for the eyes of this user only."""
    wanted = sources_of(declarations)
    directory = source_directory(run_directory)
    if wanted:
        directory.mkdir(mode=0o700)
    for name, text in wanted.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(directory / f"{name}.py", flags, 0o600), "w") as file:
            file.write(text)


def sources_of(declarations: Iterable[Declaration]) -> dict[str, str]:
    """Return the texts of the modules that pipelines need, by name."""
    names = {name.partition(":")[0] for one in declarations for name in function_names(one)}
    return {name: _texts[name] for name in sorted(names & _texts.keys())}


def take_sources(texts: Mapping[str, str]) -> None:
    """Know the modules of pipelines that were declared in another process."""
    _texts.update(texts)


class _Module:
    """The text of a module for one function."""

    def __init__(self, fn: FunctionType) -> None:
        self._fn = fn
        self._imports: set[str] = set()
        self._values: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        self._add(fn)

    def text(self) -> str:
        future = "from __future__ import annotations\n" * self._annotations(self._fn)
        values = (f"{name} = {text}" for name, text in sorted(self._values.items()))
        head = f'"""{self._fn.__name__}, given by hs.by_source."""\n{future}'
        lines = [head, *sorted(self._imports), "", *values, *reversed(self._functions.values())]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _annotations(fn: FunctionType) -> bool:
        return bool(fn.__code__.co_flags & _ANNOTATIONS)

    def _refused(self, why: str, remedy: str = _REMEDY) -> TypeError:
        return TypeError(f"by_source: {self._fn.__qualname__} {why}: {remedy}")

    def _add(self, fn: FunctionType) -> None:
        """Add a function, and all that it uses."""
        of = "" if fn is self._fn else f"calls {fn.__qualname__}, which "
        if fn.__name__ == "<lambda>":
            raise self._refused(f"{of}is a lambda", "write a def")
        if fn.__code__.co_freevars:
            names = ", ".join(fn.__code__.co_freevars)
            raise self._refused(f"{of}is a closure over {names}", "write a def at the top level")
        if "." in fn.__qualname__:
            raise self._refused(f"{of}is no def at the top level", "write one")
        if self._annotations(fn) != self._annotations(self._fn):
            raise self._refused(f"{of}has annotations of another kind (from __future__)")
        text, compiled = self._source(fn, of)
        self._functions[fn.__name__] = f"\n\n{text}"
        used = {name for code in codes_in(compiled) for name in code.co_names}
        for name in sorted(global_names(compiled)):
            if name in fn.__globals__:
                self._note(name, fn.__globals__[name], used)
            elif not hasattr(builtins, name):
                raise self._refused(f"{of}uses {name!r}, which is not defined", "define it first")

    def _source(self, fn: FunctionType, of: str) -> tuple[str, CodeType]:
        """Return its def without decorators, and that compiled."""
        try:
            text = textwrap.dedent(inspect.getsource(fn))
            (node,) = ast.parse(text).body
        except (OSError, TypeError, SyntaxError, ValueError):
            raise self._refused(
                f"{of}has no source text here", "define it in a file or in a notebook's cell"
            ) from None
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise self._refused(f"{of}is no def", "write one")
        for decorator in node.decorator_list:
            if ast.unparse(decorator).rpartition(".")[2] != by_source.__name__:
                raise self._refused(
                    f"{of}is decorated with {ast.unparse(decorator)}", "call that inside of it"
                )
        text = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
        flags = fn.__code__.co_flags & _ANNOTATIONS
        compiled = compile(text, fn.__code__.co_filename, "exec", flags, dont_inherit=True)
        codes = [code for code in compiled.co_consts if isinstance(code, CodeType)]
        own = [code_digest(code) for code in codes if code.co_name == fn.__name__]
        if code_digest(fn.__code__) not in own:
            raise self._refused(
                f"{of}does something else than its source text says", "define it again"
            )
        return text, compiled

    def _note(self, name: str, value: Any, used: set[str]) -> None:
        """Add a value that a function uses under a name."""
        module = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            self._import(name, value, used)
        elif isinstance(value, FunctionType) and module == self._fn.__module__:
            if value.__name__ != name:
                raise self._refused(f"calls {value.__name__} by another name, {name}")
            if name not in self._functions:
                self._add(value)
        elif (text := _plain_text(value)) is not None:
            self._values[name] = text
        elif module != self._fn.__module__ and (own := _name_in(module, value)):
            self._imports.add(f"from {module} import {own} as {name}")
        else:
            raise self._refused(f"uses {name}, {kind_of(value)}, which no text stands for")

    def _import(self, name: str, module: ModuleType, used: set[str]) -> None:
        path = module.__name__
        if path == self._fn.__module__ or sys.modules.get(path) is not module:
            raise self._refused(f"uses {name}, a module that no import finds")
        self._imports.add(f"import {path} as {name}")
        found = [path]
        for outer in found:  # parts that are imported by the name of the whole
            found += [f"{outer}.{one}" for one in used if f"{outer}.{one}" in sys.modules]
        self._imports |= {f"import {part}" for part in found[1:]}


def _name_in(module: Any, value: Any) -> str:
    """Return the name by which a value is imported from a module; "" where there is none."""
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    found = isinstance(own, str) and isinstance(module, str) and own.isidentifier()
    return str(own) if found and getattr(sys.modules.get(module), str(own), None) is value else ""


def _plain_text(value: Any) -> str | None:
    """Return a constant as Python writes it; None where that would be another value."""
    text = repr(value)
    try:
        same = len(text) <= _MOST_TEXT and ast.literal_eval(text)
        return text if type(same) is type(value) and same == value else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
