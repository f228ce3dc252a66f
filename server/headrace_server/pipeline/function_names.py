"""User functions: named where an import finds them, else sent by value.

    def of a module                package.module:function        each process imports it
    def of a file that is served   /absolute/path/file.py:function   each process loads the file
    any other callable             Sent: a name, and what cloudpickle makes of it

The others are lambdas, closures, functions of ``__main__`` and of notebooks, partials, bound
methods and callable objects.  They go from the process of the user to processes that it starts,
never through a socket of a trainer.

A file is loaded once per process, as a module of a private name, so that ``if __name__ ==
"__main__":`` in it does not run.  Its directory joins the end of ``sys.path``: modules that lie
beside it can be imported, as where it is run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import pickle
import sys
import threading
import traceback
from dataclasses import dataclass, fields, is_dataclass, replace
from types import ModuleType
from typing import Any

from headrace_proto.errors import kind_of, near, rewording

_PREFIX = "headrace_file_"
#: The directories of this package and of Python's modules, and the names of those of packages.
_HEADRACE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_loading = threading.RLock()
_paths: dict[str, str] = {}  # private module name -> file


@dataclass(eq=False, repr=False)
class Sent:
    """A function that is sent by value.  ``name`` is for people and for comparisons."""

    name: str
    function: object = None
    _data: bytes = b""  # of cloudpickle, once it is packed
    _files: tuple[str, ...] = ()  # that must be loaded before

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return repr(self.name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sent):
            return NotImplemented
        mine, theirs = (self.name, self._data), (other.name, other._data)
        return mine == theirs and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.name)

    def __deepcopy__(self, _: object) -> Sent:
        return self

    def __reduce__(self) -> tuple[type[Sent], tuple[str, None, bytes, tuple[str, ...]]]:
        packed = self.packed()
        return Sent, (packed.name, None, packed._data, packed._files)

    def packed(self) -> Sent:
        """Return the function as it is now, as bytes.  TypeError names what can not be pickled."""
        if self._data:
            return self
        try:
            import cloudpickle
        except ImportError:
            raise ImportError(
                f"{self.name} is in no module that workers can import, and to send it needs "
                "cloudpickle: pip install cloudpickle"
            ) from None
        if (main := sys.modules.get("__mp_main__")) is not None:  # of a spawned process
            cloudpickle.register_pickle_by_value(main)
        try:
            data = cloudpickle.dumps(self.function)
        except Exception as error:
            raise TypeError(
                f"{self.name} can not be sent to the processes of the server, since it holds what "
                f"can not be pickled: {error!s:.300}.  Make that inside of the function, "
                "or give a function of a module, which workers import"
            ) from error
        files = tuple(path for name, path in _paths.items() if name.encode() in data)
        return Sent(self.name, None, data, files)

    def load(self) -> Any:
        """Return the function.  ImportError names what its process lacks."""
        if self.function is None:
            for file in self._files:
                load_file(file)
            try:
                self.function = pickle.loads(self._data)  # noqa: S301 - of the user's own process
            except Exception as error:
                raise ImportError(
                    f"{self.name} can not be made in this process: {error_with_place(error)}"
                ) from error
        return self.function


def packed(declared: Any) -> Any:
    """Return a declaration, or a part of one, with all functions as bytes: they stay as they are.

    TypeError names one that can not be sent.
    """
    if isinstance(declared, Sent):
        return declared.packed()
    if isinstance(declared, list | tuple):
        return type(declared)(map(packed, declared))
    if isinstance(declared, dict):
        return {key: packed(value) for key, value in declared.items()}
    if is_dataclass(declared):
        parts = {one.name: packed(getattr(declared, one.name)) for one in fields(declared)}
        return replace(declared, **parts)  # type: ignore[type-var]
    return declared


def name_of(fn: object, argument: str = "fn") -> str | Sent:
    """Return the name by which another process imports a function, or the function to be sent.

    TypeError for what is no function, ValueError for a string of another form than a name.  Both
    begin with the ``argument`` it is of.
    """
    if isinstance(fn, str):
        with rewording(ValueError, f"{argument}: ", ValueError):
            module, attribute = _split(fn)
        return f"{os.path.abspath(module)}:{attribute}" if _is_file(module) else fn
    if not callable(fn):
        raise TypeError(
            f"{argument}: {fn!r:.80} is {kind_of(fn)}: neither a function nor a name of one"
        )
    home, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if isinstance(home, str) and isinstance(qualname, str):
        found = _walk(sys.modules.get(home), qualname)
        if found is fn and home not in ("__main__", "__mp_main__"):
            return f"{_paths.get(home, home)}:{qualname}"
    return Sent(_shown_name(fn), fn)


def _shown_name(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"partial({_shown_name(fn.func)})"
    of = fn if isinstance(getattr(fn, "__qualname__", None), str) else type(fn)
    return f"{of.__module__ or 'builtins'}:{of.__qualname__}"


def _walk(holder: object, qualname: str) -> object:
    for part in qualname.split("."):
        holder = getattr(holder, part, None)
    return holder


def _split(name: str) -> tuple[str, str]:
    module, _, attribute = name.rpartition(":")
    words = attribute.split(".") + ([] if _is_file(module) else module.split("."))
    if not all(word.isidentifier() for word in words):
        raise ValueError(f"{name!r:.200} is not of the form module:name or path.py:name")
    return module, attribute


def _is_file(module: str) -> bool:
    return module.endswith(".py")


def resolve(name: str | Sent) -> Any:
    """Return the object of a name.  ImportError names a missing part or an import's error."""
    if isinstance(name, Sent):
        return name.load()
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
    file = f"{found[0].filename}:" if found else ""
    if file.startswith("<"):  # cloudpickle keeps the line and no file
        file = "line "
    place = f" ({file}{found[0].lineno})" if found else ""
    return f"{type(error).__name__}{when}: {error}{place}"


def _is_installed(file: str) -> bool:
    """Return whether a file is of a package; the names of files in Cython are relative."""
    return not _PACKAGES.isdisjoint(file.split(os.sep)) or file.endswith((".pyx", ".pxi"))


def load_file(path: str | os.PathLike[str]) -> ModuleType:
    """Return the module that a file holds.  Loaded once per process, under a name made of its path.

    The program itself may be that module: it is not run again.
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
