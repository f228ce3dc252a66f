"""The pipelines that a command line names, and the option that names them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from headrace_proto.errors import HeadraceError

from ..pipeline.builder import Pipeline
from ..pipeline.function_names import error_with_place, resolve
from ..process.option import Option
from .options import parted

PIPELINES = Option(
    "pipelines",
    "target",
    "a pipeline, a function that returns one (the feed gets its name), or a dict of pipelines by "
    "feed name; package.module:NAME works too, and FEED=FILE.py:NAME names the feed",
    metavar="FILE.py:NAME",
    many=True,
    positional=True,
)
PIPELINE = Option(
    "pipeline",
    "target",
    "a pipeline, or a function that returns one; package.module:NAME works too",
    metavar="FILE.py:NAME",
    positional=True,
)


def load_one(target: str) -> tuple[str, Pipeline]:
    """Return the one pipeline that a target names, after the name of its feed."""
    found = load([target])
    if len(found) != 1:
        raise ValueError(
            f"{target} gives {len(found)} pipelines ({', '.join(found)}), and this works on one: "
            "write a function that returns it"
        )
    return next(iter(found.items()))


def load(targets: Sequence[str]) -> dict[str, Pipeline]:
    """Return the pipelines that targets name, by the names of their feeds."""
    if os.getcwd() not in map(os.path.abspath, sys.path):
        sys.path.insert(0, os.getcwd())  # an installed script does not see modules that lie here
    pipelines: dict[str, Pipeline] = {}
    for named in targets:
        given, target = parted(named)
        value: object = resolve(target)
        name = given or target.rpartition(":")[2].rpartition(".")[2]
        if callable(value) and not isinstance(value, Pipeline):
            value = _called(target, value)
        if given and isinstance(value, Mapping):
            raise TypeError(f"{named}: {target} is a dict, which names its feeds itself")
        found = value if isinstance(value, Mapping) else {name: value}
        for feed, pipeline in found.items():
            if not isinstance(pipeline, Pipeline):
                raise TypeError(
                    f"{target} gives {pipeline!r:.60} ({type(pipeline).__name__}), not a pipeline"
                )
            if feed in pipelines:
                raise ValueError(
                    f"two pipelines are called {feed!r}: give one of them another name, as "
                    f"NAME={target}"
                )
            pipelines[feed] = pipeline
    return pipelines


def _called(target: str, function: Callable[[], object]) -> object:
    """Call a user's function; an error names the place in it, in place of a traceback."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TypeError(f"{target} is called without arguments: {error}") from None
    except ValueError:  # a function without a signature
        pass
    try:
        return function()
    except HeadraceError:
        raise
    except Exception as error:
        raise ImportError(f"{target} raised {error_with_place(error)}") from error
