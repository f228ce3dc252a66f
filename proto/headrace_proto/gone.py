"""Names that are gone, and what takes the place of each.

hs.replay               AttributeError: hs.replay is gone: …
connect(…, group=2)     TypeError: connect(group=) is gone: …
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: ``owner.attribute`` or ``call(argument=)``, and the remedy.
GONE: Final[Mapping[str, str]] = {
    "hs.replay": ".with_origin() names the rows of a batch (batch.origin), and "
    "`headrace preview FEED --partition P --batch N` makes a plain batch again",
    "hs.final_state": "an initial state is a constant array or a column's name",
    "hs.from_pool": "an initial state is a constant array or a column's name",
    "hs.by_source": "functions of notebooks and of __main__ are sent as they are",
    "Pipeline.cache": "`headrace convert` writes Arrow files, which hs.read_arrow maps",
    "Feed.take": "feed.set_batch_size(n) changes the size of the batches to come",
    "connect(group=)": "broadcast the batches of one trainer to the others of its group",
    "connect(placement=)": "order='any' takes each batch as soon as it is ready",
    "connect(members=)": "broadcast the batches of one trainer to the others of its group",
}


def absent(owner: str, name: str) -> AttributeError:
    """Return the error for an attribute that the owner has not, or has no longer."""
    if remedy := GONE.get(f"{owner}.{name}"):
        return AttributeError(f"{owner}.{name} is gone: {remedy}")
    return AttributeError(f"{owner} has no attribute {name!r}")


def refusing_gone(function: F) -> F:
    """Let a call refuse its arguments that are gone, with what takes their place."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for name in named:
            if remedy := GONE.get(f"{function.__name__}({name}=)"):
                raise TypeError(f"{function.__name__}({name}=) is gone: {remedy}")
        return function(*args, **named)

    return call  # type: ignore[return-value]
