"""Digests of user functions, by which the next start notices that one was changed.

    function ─► its instructions, constants, names, defaults, closure     code: a change is refused
             ─► functions and classes of its own module that it uses      code
             ─► plain values and arrays of its module that it uses        value: a warning

Instructions are compared by their meaning.  So comments, docstrings, line numbers, the place of
the file and unused constants are no part of it.  A value may come from the machine (a path, the
environment), hence the milder word.  Functions of other modules and data files are not seen.

Instructions differ between versions of Python: digests of another one are not compared.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from .declaration import Declaration
from .forks import own
from .function_names import resolve, stable_name

#: The interpreter whose instructions these are.
PYTHON = f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER.hex()} O{sys.flags.optimize}"
_SILENT = frozenset({"NOP", "CACHE", "RESUME", "EXTENDED_ARG", "PUSH_NULL"})
#: The instruction of a call of an attribute depends on imports of the same file.
_SAME = {"LOAD_METHOD": "LOAD_ATTR"}
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_KINDS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
#: Values in a value of a module, and bytes of an array, beyond which only their number counts.
_MOST_VALUES = 100_000
_MOST_BYTES = 64 * 1024**2

#: By part (the function itself, and the names that it uses): "code DIGEST" or "value DIGEST".
Parts = dict[str, str]


def fingerprints(declaration: Declaration) -> dict[str, Parts]:
    """Return the parts of every importable function that a pipeline names."""
    found = {}
    for name in sorted(set(function_names(declaration))):
        with suppress(Exception):  # the stage that needs the function reports it
            found[stable_name(name)] = fingerprint(own(resolve)(name))
    return found


def function_names(declaration: Declaration) -> Iterator[str]:
    """Yield the names of all functions of a pipeline."""
    for source in declaration.source.leaves:
        if source.kind == "function":
            yield source.options["function"]
    for options in (*(stage.options for stage in declaration.stages), declaration.shape.options):
        for option, value in options.items():
            if option == "function":
                yield value
            elif isinstance(value, list | tuple) and len(value) == 2 and value[0] == "function":
                yield value[1]


def fingerprint(function: Any) -> Parts:
    """Return the parts of one function; empty where none is written in Python."""
    parts: Parts = {}
    if not any(True for _ in _functions(function)):
        function = type(function)  # an object that can be called
    _note(getattr(function, "__qualname__", "?"), function, parts)
    return parts


def changes(before: Mapping[str, Parts], now: Mapping[str, Parts]) -> tuple[list[str], list[str]]:
    """Describe differences of functions that both have: of code, and of values."""
    code, values = [], []
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        for part in sorted(old.keys() & new.keys()):
            if old[part] == new[part]:
                continue
            if name.endswith(f":{part}"):
                code.append(f"the function {name} was changed")
            elif new[part].startswith("value "):
                values.append(f"{part}, which {name} uses, has another value")
            else:
                code.append(f"{part}, which {name} uses, was changed")
    return sorted(code), sorted(values)


def _note(name: str, target: Any, parts: Parts) -> None:
    """Add a function or a class under a name, and the names of its module that it uses."""
    functions = list(_functions(target))
    if name in parts or not functions:
        return
    parts[name] = "code "
    digest = _digest([_function(one) for one in functions])
    if isinstance(target, type):
        plain = {n: _value(v) for n, v in vars(target).items() if n[:2] != "__" and _is_plain(v)}
        digest = _digest([digest, plain])
    parts[name] += digest
    for one in functions:
        for used in sorted(global_names(one.__code__)):
            value = one.__globals__.get(used)
            if used in parts or used not in one.__globals__:
                continue
            if _is_plain(value):
                parts[used] = f"value {_digest(_value(value))}"
            elif isinstance(value, type):
                if value.__module__ == one.__module__:
                    _note(used, value, parts)
            elif any(f.__globals__ is one.__globals__ for f in _functions(value)):
                _note(used, value, parts)


def _functions(target: Any) -> Iterator[FunctionType]:
    """Yield a function and those that it wraps, or the methods of a class."""
    if isinstance(target, type):
        for _, member in sorted(vars(target).items()):
            for one in (member, *(getattr(member, n, None) for n in ("fget", "fset", "__func__"))):
                if isinstance(one, FunctionType):
                    yield one
    for _ in range(100):  # a chain of decorators
        if isinstance(target, FunctionType):
            yield target
        target = getattr(target, "__wrapped__", None) or getattr(target, "__func__", None)


def _function(function: FunctionType) -> Any:
    cells = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty one
            cells.append(cell.cell_contents)
    inner = [_code(cell.__code__) for cell in cells if isinstance(cell, FunctionType)]
    plain = [_value(cell) for cell in cells if _is_plain(cell)]
    defaults = [_value(value) for value in function.__defaults__ or ()]
    named = {name: _value(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return [_code(function.__code__), defaults, named, plain, inner]


def code_digest(code: CodeType) -> str:
    """Return the digest of the instructions of a code object."""
    return _digest(_code(code))


def _code(code: CodeType) -> Any:
    kept = [i for i in dis.get_instructions(code) if i.opname not in _SILENT]
    places = [i.offset for i in kept]
    rows = []
    for step in kept:
        arg = step.argval
        if step.opcode in _JUMPS:
            arg = sum(offset < arg for offset in places)
        rows.append([_SAME.get(step.opname, step.opname), _value(arg)])
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
    arguments += bool(code.co_flags & 8)
    counts = [code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount]
    names = list(code.co_varnames[:arguments])
    return [rows, counts, names, code.co_flags & _KINDS, code.co_exceptiontable.hex()]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those that it defines."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_in(const)


def global_names(code: CodeType) -> set[str]:
    """Return names of its module, or builtin ones, that a code object looks up."""
    return {
        str(step.argval)
        for one in codes_in(code)
        for step in dis.get_instructions(one)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _is_plain(value: Any) -> bool:
    return isinstance(
        value, (*_PLAIN, tuple, list, dict, set, frozenset, np.ndarray, np.generic, np.dtype)
    )


def _value(value: Any, left: list[int] | None = None) -> Any:
    """Return a value as lists, texts and numbers; of opaque objects only the type."""
    left = [_MOST_VALUES] if left is None else left
    left[0] -= 1
    kind = type(value).__name__
    if left[0] < 0:
        return "more"
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple | list):
        return [kind, len(value), [_value(one, left) for one in value[: max(0, left[0])]]]
    if isinstance(value, set | frozenset):
        return [kind, len(value), sorted(repr(_value(one, left)) for one in value)]
    if isinstance(value, dict):
        items = [[_value(k, left), _value(v, left)] for k, v in value.items() if left[0] > 0]
        return [kind, len(value), items]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
        size = value.nbytes
        data = np.ascontiguousarray(value).tobytes() if size <= _MOST_BYTES else b""
        return [kind, str(value.dtype), list(value.shape), hashlib.blake2b(data).hexdigest()]
    if isinstance(value, (*_PLAIN, np.generic, np.dtype)):
        return [kind, repr(value)]
    return kind


def _digest(plain: Any) -> str:
    return hashlib.blake2b(repr(plain).encode(errors="backslashreplace"), digest_size=8).hexdigest()
