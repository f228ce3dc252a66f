"""Calls that declare a pipeline, and the checks of their arguments by name.

    read_tfrecord(paths, features)     ─► absolute paths, features by name ─► the body
    pipeline.batch(32, ragged=True)    ─► an int in its bounds, a flag, …  ─► the body

The annotation of an argument says whether it may be None, and is the check of a flag and of a
choice.  Other arguments mean the same wherever they stand, so one table has their bounds.  The body
gets the canonical form: Python numbers, lists, strings, and selectors as plain data.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import NoneType
from typing import Any, Final, Literal, SupportsIndex, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from headrace_proto.errors import near
from headrace_proto.schema import Field

from ..shaping.row_copies import MAX_RATE
from . import argument_checks as checks
from .argument_checks import MAX_BATCH_SIZE, MAX_COUNT, check_kind, checked_value
from .declaration import Feature
from .function_names import name_of

F = TypeVar("F", bound=Callable[..., object])
#: Gets the argument's name and value, whether it may be None, and the columns if they are known.
_Check = Callable[[str, object, bool, Mapping[str, Field] | None], object]

_INT31: Final = 2**31 - 1


def _integer(low: int, high: int) -> _Check:
    return lambda name, value, or_none, _: checks.checked_int(
        name, value, low, high, or_none=or_none
    )


def _selector(**allowed: Any) -> _Check:
    return lambda name, value, _, known: checked_value(name, value, known, **allowed)


def _by(check: Callable[..., object], *bounds: object) -> _Check:
    return lambda name, value, *_: check(name, value, *bounds)


def _batch_size(argument: str, value: object) -> int | list[int]:
    """Return one size for all buckets, or one for each."""
    if isinstance(value, (list, tuple)) or np.ndim(value) == 1:  # type: ignore[arg-type]
        return checks.checked_ints(argument, value, 1, MAX_BATCH_SIZE)
    check_kind(argument, value, SupportsIndex, "an int or a list")
    return checks.checked_int(argument, value, 1, MAX_BATCH_SIZE)


def _boundaries(argument: str, value: object) -> list[int]:
    check_kind(argument, value, (list, tuple), "a list of ints")
    return checks.checked_ints(argument, value, -(2**63), 2**63 - 1)


#: The checks of arguments by name; ``call.name`` is the argument of one call alone.
_CHECKS: Final[Mapping[str, _Check]] = {
    name: check
    for names, check in (
        ("batch_size group lanes max_open", _integer(1, MAX_BATCH_SIZE)),
        ("live.max_open", _integer(1, _INT31)),
        ("balance_batches", _integer(1, 4096)),
        ("shuffle_batches", _integer(2, 4096)),
        # The rows of each block that is mixed are found by a pass over all of them.
        ("blocks", _integer(1, 1024)),
        ("block_bytes", _integer(1, _INT31)),
        ("capacity max_examples_in_flight max_padded_elements", _integer(1, MAX_COUNT)),
        ("n queue_capacity warmup", _integer(1, MAX_COUNT)),
        ("max_bad_examples max_staleness skip.n", _integer(0, MAX_COUNT)),
        ("left right shift", _integer(0, _INT31)),
        # Rows of a window lie in memory, and a position in it fits 32 bits.
        ("num_unroll pack.length pad_to_multiple stride window", _integer(1, _INT31)),
        ("make_keys_unique_seed phase_seed seed shuffle_seed", _integer(-(2**63), 2**63 - 1)),
        # Each bucket costs a queue in every partition.
        ("num_buckets", _integer(1, 65_536)),
        ("bucket.capacity bucket_by_sequence_length.capacity", _integer(1, 65_536)),
        ("bucket.batch_size bucket_by_sequence_length.batch_size", _by(_batch_size)),
        ("bucket_boundaries", _by(_boundaries)),
        ("bucket_capacities", _by(checks.checked_ints, 1, MAX_COUNT)),
        ("shards", _integer(1, 2**20)),
        ("mean_decay", _by(checks.checked_number, 0, 1)),
        ("overall_rate", _by(checks.checked_number, 0, MAX_RATE)),
        ("cost", _selector()),
        ("balance", _selector(sequence=True)),
        ("input_length", _selector(sequence=True, integer=True)),
        ("rates", _selector(constant=(0, MAX_RATE))),
        ("weighted_resample.weights", _selector()),
        ("lane which_bucket", _selector(integer=True)),
        ("column input_key", _by(checks.checked_name)),
        ("args kwargs options", _by(checks.plain_data)),
        ("dtype", _by(checks.checked_dtype)),
        ("features", _by(checks.checked_features)),
        ("padding_values", _by(checks.checked_padding_values)),
        ("paths", _by(checks.checked_paths)),
        ("ragged", _by(checks.checked_ragged)),
        ("schema", _by(checks.checked_schema)),
    )
    for name in names.split()
}


def _check_of(call: str, name: str, hint: object) -> tuple[_Check | None, bool]:
    """Return the check of an argument by its annotation, and whether it may be None."""
    or_none = NoneType in get_args(hint)
    own = [one for one in get_args(hint) if one is not NoneType] if or_none else [hint]
    if own == [bool]:
        return _by(checks.flag), or_none
    if get_origin(own[0]) is Literal:
        return _by(checks.one_of, (None,) * or_none + get_args(own[0])), or_none
    return _CHECKS.get(f"{call}.{name}") or _CHECKS.get(name), or_none


def shown(value: object) -> str:
    """Return an argument as text: a line, without examples and the values of arrays."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Feature | Field):
        return str(value.field if isinstance(value, Feature) else value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {shown(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list) and value:
        listed = isinstance(value[0], Mapping)
        return f"[{len(value)} examples]" if listed else f"[{', '.join(map(shown, value))}]"
    if hasattr(value, "_calls"):
        return ".".join(value._calls)
    return f"{name_of(value) if callable(value) else value!r:.500}"


#: The page that says what takes the place of each argument of the original.
_PAGE = "docs/coming-from-contrib.md"


def checking(function: F) -> F:
    """Give a call its arguments checked, and a pipeline that it makes the text of the call.

    A step of a pipeline is refused after the shape.
    """
    signature = inspect.signature(function)

    @functools.cache
    def arguments() -> dict[str, tuple[_Check | None, bool]]:
        hints, call = get_type_hints(function), function.__name__
        return {name: _check_of(call, name, hints.get(name)) for name in signature.parameters}

    @functools.wraps(function)
    def call(*args: object, **named: object) -> object:
        try:
            given = signature.bind(*args, **named)
        except TypeError:
            for name in named:
                if name not in signature.parameters:
                    known = [name for name in signature.parameters if name != "self"]
                    hint = near(name, known) or (
                        f"; it has {', '.join(known)}; {_PAGE} has those of tf.contrib.training"
                    )
                    what = f"{function.__name__}() has no argument {name}"
                    raise TypeError(f"{what}{hint}") from None
            return function(*args, **named)  # Python's error, with the name of the call
        passed = dict(given.arguments)
        fields, calls = None, ()
        if pipeline := passed.get("self"):
            pipeline._open(function.__name__)
            fields, calls = pipeline.fields, pipeline._calls
        for name, value in passed.items():
            check, or_none = arguments()[name]
            if check and not (value is None and or_none):
                given.arguments[name] = check(name, value, or_none, fields)
        made: Any = function(*given.args, **given.kwargs)
        if not hasattr(made, "_calls"):
            return made
        listed = (f"{name}={shown(value)}" for name, value in passed.items() if name != "self")
        return replace(made, _calls=(*calls, f"{function.__name__}({', '.join(listed)})"))

    return call  # type: ignore[return-value]
