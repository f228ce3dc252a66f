"""The arguments of a method, to be compared with those of TensorFlow."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def signature(method: Callable[..., Any]) -> list[Any]:
    """Return the names of arguments, those with a default as a pair, less ``self``."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [
        p.name if p.default is p.empty else (p.name, p.default)
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
