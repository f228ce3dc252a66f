"""Packages that only some sources need, imported when a pipeline asks for them."""

from __future__ import annotations

import importlib
from types import ModuleType

from headrace_proto.errors import HeadraceError


class PackageMissing(HeadraceError, ImportError):
    """A source needs a package that is not installed.  The text carries the pip line."""


def require(module: str, extra: str, wanted_for: str) -> ModuleType:
    """Return the module; PackageMissing where it can not be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PackageMissing(
            f"{wanted_for} needs {module.partition('.')[0]} ({error}): "
            f"pip install 'headrace[{extra}]'"
        ) from None
