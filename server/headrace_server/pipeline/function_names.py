"""User code is named, never sent: every process imports it by the name that is declared.

    def in a module            package.module:function, package.module:Class.function
    def in a file that is run  /absolute/path/file.py:function
    def that is given by its source text     a module that hs.run writes, see by_source.py
    lambda, local function, partial, bound method, callable object      refused, with the remedy

A file is loaded once per process, as a module of a private name, so that ``if __name__ ==
"__main__":`` in it does not run.  Its directory joins the end of ``sys.path``: modules that lie
beside it can be imported, as where it is run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace_proto.errors import kind_of, near

_REMEDY = "put a def at the top level of a module, and give that"
_PREFIX = "headrace_file_"
#: A module of by_source.py: its name ends in a digest of its text.
_BY_SOURCE = re.compile(r"\b(headrace_source_\w+)_[0-9a-f]{12}(?=:)")
#: The directories of this package and of Python's modules, and the names of those of packages.
_HEADRACE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_loading = threading.RLock()
_paths: dict[str, str] = {}  # private module name -> file


def name_of(fn: Callable[..., Any] | str, argument: str = "fn") -> str:
    """Return the name by which another process finds a function.  TypeError for one without;
    ValueError for a string that is no such name.  Both begin with the ``argument`` it is of."""
    try:
        return _name_of(fn)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None


def _name_of(fn: Callable[..., Any] | str) -> str:
    if isinstance(fn, str):
        return _checked(fn)
    if not callable(fn):
        raise TypeError(f"{fn!r:.80} is {kind_of(fn)}: neither a function nor a name")
    from .by_source import is_by_source, name_by_source

    if is_by_source(fn):
        return name_by_source(fn)
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if fault := _fault_of(fn, module, qualname):
        raise _refused(fn, fault)
    assert isinstance(module, str)
    return f"{_place(fn, module, sys.modules.get(module))}:{qualname}"


def _fault_of(fn: Any, module: Any, qualname: Any) -> str:
    """Return the reason why no import finds a function, or ""."""
    if isinstance(fn, functools.partial):
        raise _refused(fn, "is a partial, which no import finds", "write a def that calls it")
    if inspect.ismethod(fn):
        return "is bound to an object, which stays in this process"
    if not isinstance(qualname, str):
        return f"is an object of {type(fn).__name__}, which no import finds"
    if "<lambda>" in qualname:
        return "is a lambda, which no import finds"
    if "<locals>" in qualname:
        return "is defined inside of another function, where no import finds it"
    if not isinstance(module, str):
        return "belongs to no module"
    if _walk(sys.modules.get(module), qualname) is not fn:
        return f"is not what {module}:{qualname} is now (was it decorated, or defined again?)"
    return ""


def _refused(fn: Any, why: str, remedy: str = _REMEDY) -> TypeError:
    return TypeError(
        f"{fn!r:.120} {why}. User code is named, never sent, and workers import it: {remedy}"
    )


def _walk(holder: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        holder = getattr(holder, part, None)
    return holder


def _place(fn: Any, module: str, holder: ModuleType | None) -> str:
    """Return the module or the file that a function is imported from."""
    if module in _paths:
        return _paths[module]
    if module not in ("__main__", "__mp_main__"):
        return module
    spec = getattr(holder, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # python -m package.module
        return str(spec.name)
    file = getattr(holder, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        raise _refused(
            fn,
            "is defined in a session or a notebook's cell, which has no file",
            "write @hs.by_source above its def, or put it in a module (in a notebook: a cell that "
            "begins with %%writefile my_functions.py) and import it from there",
        )
    return os.path.abspath(file)


def stable_name(text: str) -> str:
    """Return a name, or a text with names, without parts that depend on a source text."""
    return _BY_SOURCE.sub(r"\1", text)


def _checked(name: str) -> str:
    """Return a name given as a string, with the path made absolute."""
    module, attribute = _split(name)
    return f"{os.path.abspath(module)}:{attribute}" if _is_file(module) else name


def _split(name: str) -> tuple[str, str]:
    module, colon, attribute = name.rpartition(":")
    dotted = all(part.isidentifier() for part in attribute.split("."))
    if not colon or not dotted or not module:
        raise ValueError(f"{name!r:.200} is not of the form module:name or path.py:name")
    if not _is_file(module) and not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(
            f"{name!r:.200} is not of the form module:name or path.py:name: {module!r:.200} is "
            "neither a module's name nor a path that ends in .py"
        )
    return module, attribute


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def resolve(name: str) -> Any:
    """Return the object of a name.  ImportError names a missing part or an import's error."""
    module, attribute = _split(name)
    found: Any = load_file(module) if _is_file(module) else _import(module, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            here = getattr(found, "__qualname__", module)
            raise ImportError(f"{name}: there is no {part!r} in {here}{near(part, dir(found))}")
        found = getattr(found, part)
    return found


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ImportError(
                f"{name}: there is no module {error.name!r} on sys.path, which is {sys.path}"
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ImportError:
    return ImportError(f"{name}: the import raised {error_with_place(error)}")


def error_with_place(error: Exception, when: str = "") -> str:
    """Return an error of a user's code: the place in it stands in for a traceback.

    The place is the last one outside of installed packages; where the code is itself installed, it
    is the first one in a package.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((_HEADRACE, "<frozen "))]
    installed = [frame for frame in theirs if _is_installed(frame.filename)]
    own = [
        frame
        for frame in theirs
        if frame not in installed and not frame.filename.startswith(_PYTHON)
    ]
    found = own[-1:] or installed[:1] or theirs[:1]
    place = f" ({found[0].filename}:{found[0].lineno})" if found else ""
    return f"{type(error).__name__}{when}: {error}{place}"


def _is_installed(file: str) -> bool:
    """Return whether a file is of a package; the names of files in Cython are relative."""
    return not _PACKAGES.isdisjoint(file.split(os.sep)) or file.endswith((".pyx", ".pxi"))


def load_file(path: str | os.PathLike[str]) -> ModuleType:
    """Return the module that a file holds.  Loaded once per process, under a name made of its path.

    With ``workers=0`` the program itself may be that module: it is not run again.
    """
    path = os.path.abspath(path)
    program = sys.modules.get("__main__")
    if program is not None and path == os.path.abspath(getattr(program, "__file__", None) or ""):
        return program
    stem = "".join(c if c.isalnum() else "_" for c in os.path.basename(path).removesuffix(".py"))
    digest = hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()
    name = f"{_PREFIX}{stem}_{digest}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not os.path.isfile(path):
            raise ImportError(f"{path}: there is no such Python file")
        module = importlib.util.module_from_spec(spec)
        if os.path.dirname(path) not in sys.path:
            sys.path.append(os.path.dirname(path))
        sys.modules[name] = module
        _paths[name] = path
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name], _paths[name]
            if isinstance(error, Exception):
                raise _broken(path, error) from error
            raise
        return module
