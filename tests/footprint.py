"""How much an object keeps, whatever its attributes are called."""

from __future__ import annotations

import functools
import gc
from collections import deque
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_CACHE: Any = type(functools.cache(len))
_NO_STATE = (type, ModuleType, FunctionType, BuiltinFunctionType, _CACHE)


def entries(*roots: Any) -> int:
    """Count the entries of all dicts, lists, sets and deques that are reachable from objects.

    Attributes do not count as entries.  Classes, modules, functions and the caches of functools are
    not followed.
    """
    seen: dict[int, Any] = {}
    attributes: set[int] = set()
    count, found = 0, list(roots)
    while found:
        one = found.pop()
        if id(one) in seen or isinstance(one, _NO_STATE):
            continue
        seen[id(one)] = one  # it lives until the end, so that no other gets its id
        if hasattr(one, "__dict__"):
            attributes.add(id(vars(one)))
        if isinstance(one, (dict, list, set, deque)) and id(one) not in attributes:
            count += len(one)
        found.extend(gc.get_referents(one))
    return count
