"""Values for property tests of the protocol: every message class, plain data, wire words."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from hypothesis import settings
from hypothesis import strategies as st

from headrace_proto import checks, limits, messages
from headrace_proto.codec import Registry
from tests.examples import some

#: The same examples in every run: a failure stays until it is repaired.
steady = settings(derandomize=True, deadline=None, database=None, max_examples=some(60))

REGISTRIES: tuple[Registry, ...] = (
    messages.FROM_TRAINER,
    messages.FROM_SERVER,
)
PACKED = (messages.Step, messages.Give)
KINDS = [(r, kind) for r in REGISTRIES for kind in r.kinds if kind not in PACKED]
NAMES = [kind.__name__ for _, kind in KINDS]

counts = st.integers(0, limits.MAX_COUNT)
rows = st.integers(0, limits.MAX_ROWS)
columns = st.lists(st.tuples(counts, counts, st.lists(counts, max_size=4)).map(list), max_size=6)
atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.binary(max_size=12)
)


def plain(depth: int) -> st.SearchStrategy[Any]:
    """Plain data of at most ``depth`` lists and maps in each other."""
    if not depth:
        return atoms
    inner = plain(depth - 1)
    lists = st.lists(inner, max_size=3)
    return atoms | lists | st.dictionaries(st.text(max_size=6), inner, max_size=3)


#: By the check of a field; others by its type.
_BY_CHECK = {
    get_args(alias)[1]: strategy
    for alias, strategy in (
        (checks.Count, counts),
        (checks.Signed, st.integers(-1, limits.MAX_COUNT)),
        (checks.Rank, st.integers(-1, limits.MAX_WORLD - 1)),
        (checks.World, st.integers(0, limits.MAX_WORLD)),
        (checks.RowCount, rows),
        (checks.Columns, columns),
        (checks.Counts, st.lists(counts, max_size=20).map(tuple)),
        (checks.Flag, st.booleans()),
        (checks.Text, st.text(max_size=60)),
        (checks.Blob, st.binary(max_size=60)),
        (checks.Seconds, st.floats(0, 1e9, exclude_max=True)),
        (checks.Map, st.dictionaries(st.text(max_size=6), plain(2), max_size=3)),
        (checks.Plain, plain(3)),
    )
}


def of_kind(kind: type) -> st.SearchStrategy[Any]:
    """Messages (or records) of a class, all of their fields drawn."""
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        type_, check = get_args(hint)[:2]
        fields[name] = _BY_CHECK[check] if check in _BY_CHECK else _of_type(type_)
    return st.builds(kind, **fields)


def _of_type(type_: Any) -> st.SearchStrategy[Any]:
    """By the type of the field: tuples of texts, of records, of tuples."""
    if type_ is str:
        return st.text(max_size=20)
    if type_ is int:
        return counts
    if type_ is float:
        return st.floats(-checks.LARGEST, checks.LARGEST)
    if getattr(type_, "__annotations__", None):  # a record, or a named tuple
        return of_kind(type_)
    members = get_args(type_)
    if members[-1] is ...:
        return st.lists(_of_type(members[0]), max_size=4).map(tuple)
    return st.tuples(*map(_of_type, members))
