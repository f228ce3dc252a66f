"""Errors for calls that give arguments at the positions of the TensorFlow functions.

    bucket([x, y], which, 32, 5)   TypeError: bucket() takes no tensors: …
    bucket(which, 32, 5, 1, 32)    the error of the value, and from where on positions differ

Arguments are recognised by kind; one number in the place of another can not be.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .signatures import F, checking
from .tensorflow_names import COLUMNS


def tensorflow_positions(alike: str, tensors: int | None = None) -> Callable[[F], F]:
    """Return a checked step whose errors help users of the TensorFlow function of its name.

    Up to ``alike`` positions are those of TensorFlow, less the tensors, which stood at ``tensors``.
    """

    def decorated(method: F) -> F:
        agree = list(inspect.signature(method).parameters).index(alike)
        call_checked = checking(method)

        @functools.wraps(method)
        def called(self: Any, *args: Any, **named: Any) -> Any:
            if tensors is not None and len(args) > tensors and _are_tensors(args[tensors]):
                raise TypeError(
                    f"{method.__name__}() takes no tensors, such as {args[tensors]!r:.80}: "
                    f"{COLUMNS}"
                )
            try:
                return call_checked(self, *args, **named)
            except (TypeError, ValueError) as error:
                if len(args) <= agree:
                    raise
                hint = (
                    f"After {alike} positions are not those of tf.contrib.training, whose "
                    "threads, queues and names are gone: give later arguments by name"
                )
                raise type(error)(f"{error}.  {hint}") from None

        return called  # type: ignore[return-value]

    return decorated


def _are_tensors(value: Any) -> bool:
    """Return whether a value can only be the tensors of an example, in a dict or a list."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, (list, tuple)) and any(not isinstance(v, (int, float)) for v in value)
