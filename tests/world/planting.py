"""Plants a bug by changing a line of a module, and looks for a world that finds it."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Planting:
    """Bugs by name, each with its module, text in it, the text in its place, and what ``check``
    needs for it.
    """

    bugs: Mapping[str, tuple[Any, ...]]
    used: Mapping[ModuleType, str]  # the class of a module that is changed
    check: Callable[..., Any]  # runs the world of a seed
    most: int  # worlds in which a bug is looked for
    rare: Mapping[str, int]  # where to begin, for bugs that few worlds find

    @contextlib.contextmanager
    def planted(self, name: str) -> Iterator[None]:
        module, old, new, *_ = self.bugs[name]
        text = inspect.getsource(module)
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {module.__name__}"
        found = types.ModuleType(module.__name__)
        found.__package__, found.__file__ = module.__package__, module.__file__
        with mock.patch.dict("sys.modules", {module.__name__: found}):
            code = compile(text.replace(old, new), f"{module.__name__} with a bug", "exec")
            exec(code, found.__dict__)
        name = self.used[module]
        with contextlib.ExitStack() as stack:
            for one in [*sys.modules.values()]:
                for of, value in [*vars(one).items()] if one is not module else ():
                    if value is vars(module)[name]:
                        stack.enter_context(mock.patch.object(one, of, vars(found)[name]))
            yield

    def find(self, name: str, most: int | None = None) -> tuple[int, str]:
        """Plant a bug; return the seed of the world that finds it, and what it says ("": none)."""
        first = self.rare.get(name, 0)
        _, _, _, *needs = self.bugs[name]
        with self.planted(name):
            for seed in range(first, first + (most or self.most)):
                try:
                    self.check(seed, *needs)
                except Exception as error:
                    return seed, f"{type(error).__name__}: {error}"[:90]
        return -1, ""
