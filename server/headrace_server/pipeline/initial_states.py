"""The state before the first segment of a sequence, as plain data.

    zeros((2, 256), "float32")             zeros: of numbers, False, or empty strings
    np.ones(4, "float32"), [0.5], b"a"     a constant, the same for every example
    "column"                               each example brings its own
    final_state("h", default=…)            the state in which the example's key ended before
    from_pool("h", 0.2, default=…)         for a fifth of the examples, one of the last final states
        ─► {"name", "kind", "dtype", "shape", "value"}

A state has a fixed shape that is not empty, and any dtype.  The dtype and shape of one that is
brought are those of its column, and None where only reading will show them.  A state that other
examples leave is its default with a ``carry`` beside it: which state, and how it is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from headrace_proto import dtypes, limits
from headrace_proto.errors import rewording

from .argument_checks import MAX_ELEMENTS, check_kind, checked_dtype, checked_name, checked_shape
from .examples import as_array
from .signatures import checking, shown

_SOURCES = "zeros(shape, dtype), a constant array or a column's name"


@dataclass(frozen=True, slots=True)
class Zeros:
    """An initial state of zeros, made by ``zeros``."""

    shape: tuple[int, ...]
    dtype: str

    def __repr__(self) -> str:
        return f"zeros({self.shape!r}, {self.dtype!r})"


def zeros(shape: Iterable[int], dtype: Any = "float32") -> Zeros:
    """Return an initial state of zeros; of dtype "bytes" of empty strings.

    ``shape`` is that of one row: a batch has ``[batch_size, *shape]``.
    """
    name, dims = checked_dtype("dtype", dtype), checked_shape("shape", shape)
    _check_dims("shape", dims)
    if prod(dims) > MAX_ELEMENTS:
        raise ValueError(f"shape={dims} has {prod(dims)} elements; the most is {MAX_ELEMENTS}")
    return Zeros(dims, name)


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """An initial state that other examples leave, made by ``final_state`` or ``from_pool``."""

    function: str
    name: str
    default: Any
    options: Mapping[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        return {"by": self.function, "of": self.name, **self.options}

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.function}({self.name!r}, default={shown(self.default)}, {given})"


@checking
def final_state(
    name: str, *, default: Any, most: int = 10_000, max_age: int | None = None
) -> Carried:
    """Return an initial state: the final state ``name`` of the last example of the same key.

    ``default`` is the initial state of a key that has none: ``zeros(shape, dtype)``, a constant or
    a column.  Each partition keeps the final states of the ``most`` keys that ended last, and does
    not use one whose example came in more than ``max_age`` examples before (None: any age).
    """
    return Carried("final_state", name, default, {"most": most, "max_age": max_age})


@checking
def from_pool(
    name: str, probability: float, *, default: Any, size: int = 1000, seed: int = 0
) -> Carried:
    """Return an initial state: with this probability a final state ``name`` of another key.

    It is one of the last ``size`` final states of the partition, each as likely.  Otherwise, and
    while there is none, it is ``default``: ``zeros(shape, dtype)``, a constant or a column.  States
    with the same probability and ``seed`` come from the same example.
    """
    options = {"probability": probability, "size": size, "seed": seed}
    return Carried("from_pool", name, default, options)


def _check_dims(what: str, dims: tuple[int, ...]) -> None:
    if len(dims) >= limits.MAX_RANK:  # one more is that of the rows
        raise ValueError(f"{what} has {len(dims)} dimensions; {limits.MAX_RANK - 1} can be")
    if 0 in dims:
        raise ValueError(f"{what} is {list(dims)}, which is empty; every dimension is 1 or more")


def block_name(argument: str, prefix: str, name: str) -> str:
    """Return a name, after it was seen that a batch can carry it as ``prefix:name``."""
    if ":" in name:
        raise ValueError(f"{argument}={name!r:.80} holds a colon, which stands between its parts")
    most = limits.MAX_NAME - len(prefix) - 1
    if len(name) > most:
        raise ValueError(
            f"{argument}={name!r:.80} has {len(name)} characters; in a batch of segments a name "
            f"of {prefix} has at most {most}"
        )
    return name


def checked_states(argument: str, value: Any) -> list[dict[str, Any]]:
    """Return initial states as plain data, sorted by name; none is allowed here."""
    check_kind(argument, value, Mapping, f"a dict of name to {_SOURCES}")
    names = [
        block_name(f"a name in {argument}", "state", checked_name(f"a name in {argument}", name))
        for name in value
    ]
    return [_state(f"{argument}[{name!r}]", name, value[name]) for name in sorted(names)]


def _state(argument: str, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Carried):
        if isinstance(value.default, Carried):
            raise TypeError(
                f"{argument}: default={value.default!r:.80} of {value.function} is carried itself; "
                "it is zeros(shape, dtype), a constant array or a column's name"
            )
        default = _state(f"{argument}: default", name, value.default)
        return {**default, "carry": value.plain}
    if isinstance(value, Zeros):
        return _plain(name, "zeros", value.dtype, value.shape, None)
    if isinstance(value, str):
        return _plain(name, "column", None, None, checked_name(argument, value))
    if not hasattr(value, "__array__"):
        numbers = (bool, int, float, complex, bytes, bytearray, list, tuple)
        check_kind(argument, value, numbers, _SOURCES)
    with rewording(ValueError, f"{argument}: ", ValueError):
        array = as_array(value)
    _check_dims(f"{argument}: the shape", array.shape)
    dtype = dtypes.name_of(array.dtype)
    data = array.reshape(-1).tolist() if dtype == dtypes.BYTES else array.tobytes()
    return _plain(name, "constant", dtype, array.shape, data)


def _plain(
    name: str, kind: str, dtype: str | None, shape: tuple[int, ...] | None, value: Any
) -> dict[str, Any]:
    dims = None if shape is None else list(shape)
    return {"name": name, "kind": kind, "dtype": dtype, "shape": dims, "value": value}


def check_carried(states: Sequence[Mapping[str, Any]], placement: str) -> None:
    """Raise ValueError where states can not come from those that they name."""
    known = {state["name"]: state for state in states}
    bounds: dict[str, tuple[Any, str]] = {}
    for state in states:
        carry = state.get("carry")
        if carry is None:
            continue
        what = f"initial_states[{state['name']!r}]={carry['by']}({carry['of']!r})"
        if placement == "trainer":
            raise ValueError(
                f"{what} needs state_placement='server': final states that stay with trainers "
                "never come to the server"
            )
        source = known.get(carry["of"])
        if source is None:
            raise ValueError(f"{what}: there is no such state, only {', '.join(known)}")
        fields = [(one["dtype"], one["shape"]) for one in (state, source)]
        if None not in (fields[0][0], fields[1][0]) and fields[0] != fields[1]:
            (dtype, shape), (other, others) = fields
            raise ValueError(
                f"{what} is {dtype}{list(shape)} by its default, and that state is "
                f"{other}{list(others)}: they must be alike"
            )
        names = ("most", "max_age") if carry["by"] == "final_state" else ("size",)
        bound = [carry[name] for name in names]
        first, where = bounds.setdefault(carry["by"], (bound, what))
        if first != bound:
            given = ", ".join(f"{name}={carry[name]}" for name in names)
            raise ValueError(
                f"{what} has {given}, unlike {where}: all states of an example are kept together"
            )


def by_key(options: Mapping[str, Any]) -> bool:
    """Return whether examples of such a shape start from final states of their own keys."""
    states = options.get("initial_states", ())
    return any(state.get("carry", {}).get("by") == "final_state" for state in states)
