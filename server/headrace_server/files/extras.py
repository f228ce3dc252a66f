"""Packages that the client has not, or only some feeds need, imported when one asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from headrace_proto.errors import HeadraceError, rewording


class PackageMissing(HeadraceError, ImportError):
    """A source needs a package that is not installed.  The text carries the pip line."""


def require(module: str, extra: str, wanted_for: str) -> ModuleType:
    """Return the module; PackageMissing where it can not be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PackageMissing(
            f"{wanted_for} needs {module.partition('.')[0]} ({error}): "
            f"pip install '.[{extra}]' in a checkout of headrace"
        ) from None


def filesystem(
    url: str, where: str, kind: Callable[[str], Exception] = ValueError
) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; an error of ``kind`` without one."""
    fsspec = require("fsspec", "server", url)
    unknown = rewording(kind, f"{where}: ", ValueError)
    lacking = rewording(PackageMissing, f"{where}: ", ImportError)  # of a protocol that it knows
    with unknown, lacking:
        system, path = fsspec.core.url_to_fs(url)
        return system, path


def forget(url: str) -> None:
    """Have the file system of a URL made anew, by the settings and credentials as they are now."""
    fsspec = require("fsspec", "server", url)
    fsspec.config.conf.clear()
    fsspec.config.set_conf_files(fsspec.config.conf_dir, fsspec.config.conf)
    fsspec.config.set_conf_env(fsspec.config.conf)
    for part in url.split("::"):
        protocol = part.partition("://")[0]
        if protocol in fsspec.available_protocols():
            fsspec.get_filesystem_class(protocol).clear_instance_cache()
