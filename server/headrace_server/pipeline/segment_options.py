"""The options of a shape of segments: which columns a batch has, and which arguments go together.

    input_sequences=["x"]                  the batch has sequences["x"], of column "x"
    input_sequences={"x": "c", "y": "c"}   it has sequences["x"] and sequences["y"], both of "c"

As plain data these are a list where every name is its column's, else a map: so equal shapes are
equal data, however they were declared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import prod
from typing import Any

from headrace_proto import dtypes, limits
from headrace_proto.dtypes import BYTES
from headrace_proto.errors import rewording
from headrace_proto.schema import Field
from headrace_proto.segment_layout import PACKED

from ..shaping.spans import FILL_PLACE, SEGMENT_PLACE
from .argument_checks import (
    MAX_ELEMENTS,
    check_full,
    check_kind,
    check_padding,
    check_rank,
    checked_dtype,
    checked_name,
    checked_names,
    checked_shape,
    field_of,
    fixed_field,
    selector_text,
)
from .declaration import Options, Plain
from .examples import as_array

# ── The state before the first segment of a sequence, as plain data.
#
#     zeros((2, 256), "float32")             zeros: of numbers, False, or empty strings
#     np.ones(4, "float32"), [0.5], b"a"     a constant, the same for every example
#     "column"                               each example brings its own
#         ─► {"name", "kind", "dtype", "shape", "value"}
#
# A state has a fixed shape that is not empty, and any dtype.  The dtype and shape of one that is
# brought are those of its column, and None where only reading will show them.


_SOURCES = "zeros(shape, dtype), a constant array or a column's name"


def zeros(shape: Iterable[int], dtype: object = "float32") -> Field:
    """Return an initial state of zeros; of dtype "bytes" of empty strings.

    ``shape`` is that of one row: a batch has ``[batch_size, *shape]``.
    """
    dims = checked_shape("shape", shape)
    field = Field(checked_dtype("dtype", dtype), dims)
    check_full("shape", field)
    if prod(dims) > MAX_ELEMENTS:
        raise ValueError(f"shape={dims} has {prod(dims)} elements; the most is {MAX_ELEMENTS}")
    return field


def block_name(argument: str, prefix: str, value: object) -> str:
    """Return a name, after it was seen that a batch can carry it as ``prefix:name``."""
    if ":" in (name := checked_name(argument, value)):
        raise ValueError(f"{argument}={name!r:.80} holds a colon, which stands between its parts")
    most = limits.MAX_NAME - len(prefix) - 1
    if len(name) > most:
        raise ValueError(
            f"{argument}={name!r:.80} has {len(name)} characters; in a batch of segments a name "
            f"of {prefix} has at most {most}"
        )
    return name


def checked_states(argument: str, value: object) -> list[dict[str, Any]]:
    """Return initial states as plain data, sorted by name; none is allowed here."""
    given = check_kind(argument, value, Mapping, f"a dict of name to {_SOURCES}")
    names = sorted(block_name(f"a name in {argument}", "state", name) for name in given)
    return [_state(f"{argument}[{name!r}]", name, given[name]) for name in names]


def _state(argument: str, name: str, value: object) -> dict[str, Any]:
    kind, dtype, shape = "zeros", None, None
    data: Plain = None
    if isinstance(value, Field):
        dtype, shape = value.dtype, [*value.shape]
    elif isinstance(value, str):
        kind, data = "column", checked_name(argument, value)
    else:
        if not hasattr(value, "__array__"):
            numbers = (bool, int, float, complex, bytes, bytearray, list, tuple)
            check_kind(argument, value, numbers, _SOURCES)
        with rewording(ValueError, f"{argument}: ", ValueError):
            array = as_array(value)
        kind, dtype, shape = "constant", dtypes.name_of(array.dtype), [*array.shape]
        check_rank(argument, array.shape)
        check_full(argument, Field(dtype, array.shape))
        data = array.reshape(-1).tolist() if dtype == dtypes.BYTES else array.tobytes()
    return {"name": name, "kind": kind, "dtype": dtype, "shape": shape, "value": data}


#: Columns of a batch beside sequences, context and states, in its largest form without context.
_OWN_COLUMNS = 9
#: Bytes of the header of a batch beside its columns and rows, with room for the facts of stages.
_HEADER_BYTES = 2048
#: Number of examples for which each packed row has room in the header, at least.
_LEAST_PACKED = 8
#: Maximum number of steps: counts of steps are int32 in a batch.
MOST_STEPS = 2**31 - 1
_COLUMNS = ("input_sequences", "input_context", "initial_states")


def segmented(
    given: Options, known: Mapping[str, Field] | None, live: bool = False
) -> dict[str, Any]:
    """Return the options of a shape of segments, from the checked arguments that declare it.

    ``live``: segments are handed out before their sequences have ended.
    """
    options = dict(given)
    _check_growth(options, live)
    options["initial_states"] = checked_states("initial_states", options["initial_states"])
    _check_states(options)
    seed = options["make_keys_unique_seed"]
    if seed is not None and not options["make_keys_unique"]:
        raise ValueError(
            f"make_keys_unique_seed={seed} needs make_keys_unique=True: keys stay as they are"
        )
    options["make_keys_unique_seed"] = seed or 0
    _check_geometry(options)
    if options["stride"] == options["num_unroll"]:
        options["stride"] = None  # so that equal shapes are equal data
    if options["pack"]:
        _check_packed(options)
    else:
        del options["pack"]  # so that states of earlier releases go on
    if options["lane"] is None:
        del options["lane"]
    else:
        _check_lane(options, live)
    capacity, rows = options["capacity"], options["batch_size"]
    if capacity is not None and capacity < rows:
        raise ValueError(
            f"capacity={capacity} is too small: a batch has rows of batch_size={rows} examples in "
            f"flight, so the least is {rows}"
        )
    for kind in ("sequences", "context"):
        name = f"input_{kind}"
        options[name] = checked_columns(name, kind, options[name], or_none=kind == "context")
    if options["input_length"] is None and not options["pad"]:
        raise ValueError(
            "input_length=None needs pad=True: without padding it gives the number of steps"
        )
    _check_number_of_columns(options)
    return options if known is None else fitted(options, known)


def _check_states(options: Options) -> None:
    placement, order = options["state_placement"], options["order"]
    if not options["initial_states"] and order != "lanes":
        raise ValueError(
            "initial_states is empty: at least one state must tie a segment to the next, since in "
            f"order={order!r} the segment is handed out when that state is saved; lanes without "
            "states are declared by order='lanes', batches of whole examples by .batch or .bucket"
        )
    if not options["initial_states"] and placement == "trainer":
        raise ValueError(
            "state_placement='trainer' needs a state, and initial_states is empty: without states "
            "leave state_placement out"
        )
    if placement == "trainer" and order != "lanes":
        raise ValueError(
            f"state_placement='trainer' needs order='lanes', not {order!r}: a trainer finds a "
            "state that stays with it by its row, and only in lanes a row stays with its example"
        )


def _check_growth(options: dict[str, Any], live: bool) -> None:
    """Check the options of sequences that grow, and leave those out that say nothing."""
    if options["max_staleness"] is None and options["stale"] != "skip":
        raise ValueError(f"stale={options['stale']!r} needs max_staleness=")
    for name, unset in (("max_staleness", None), ("stale", "skip"), ("exact_last", False)):
        if options[name] == unset:
            del options[name]
        elif not live:
            raise ValueError(
                f"{name}={options[name]!r} needs the shape directly after hs.live(), with nothing "
                "but .select() and filters of context between: elsewhere an example is whole "
                "before it is cut"
            )
    if live and options["state_placement"] == "trainer":
        raise ValueError(
            "state_placement='trainer' does not go with a log (hs.live): where a sequence waits "
            "for steps its lane goes to another, and its state with it.  Leave it out, and states "
            "are kept at the server"
        )
    if live and not options["pad"]:
        raise ValueError(
            "a log (hs.live) needs pad=True: nobody knows how long a sequence becomes, so its last "
            "segment is filled up"
        )


def _check_geometry(given: Options) -> None:
    unroll, step = given["num_unroll"], given["stride"]
    left, right, seed = given["left"], given["right"], given["phase_seed"]
    if step is not None and step > unroll:
        raise ValueError(
            f"stride={step} is more than num_unroll={unroll}: the steps between one segment and "
            "the next would be in none"
        )
    if (width := unroll + left + right) > MOST_STEPS:
        raise ValueError(
            f"num_unroll={unroll}, left={left} and right={right} make {width} steps; the most is "
            f"{MOST_STEPS}"
        )
    if given["phase"] is None and seed is not None:
        raise ValueError(f"phase_seed={seed} needs phase='random': nothing is drawn")
    if given["phase"] is not None and not given["pad"]:
        raise ValueError(
            "phase='random' needs pad=True: a first segment of 1 … stride steps must be filled up"
        )


def _check_packed(given: Options) -> None:
    """Raise ValueError for what has no meaning where a row has several examples."""
    if given["order"] != "lanes":
        raise ValueError(
            f"pack=True needs order='lanes', not {given['order']!r}: where a row ends inside an "
            "example, that goes on in the next batch, so it must stay in its lane"
        )
    if not given["pad"]:
        raise ValueError("pack=True needs pad=True: rows are filled up at the end of the data")
    if given["input_length"] is not None:
        raise ValueError(
            f"input_length={selector_text(given['input_length'])} does not go with pack=True: rows "
            "would have steps that no example has; cut the sequences with .map(…)"
        )
    for name in ("stride", "left", "right", "phase"):
        if given[name]:
            raise ValueError(
                f"{name}={given[name]!r} does not go with pack=True: rows share no steps, for "
                "where one ends the next one goes on"
            )
    for state in given["initial_states"]:
        if state["kind"] == "column":
            raise ValueError(
                f"initial_states[{state['name']!r}]={state['value']!r} does not go with pack=True: "
                "examples begin inside rows, all with the same declared value; declare the column "
                "as input_context, which has it for each example of a row"
            )


def _check_lane(given: Options, live: bool) -> None:
    """Raise ValueError for what does not go with examples that are assigned to lanes."""
    for wrong, why in (
        (given["order"] != "lanes", f"needs order='lanes', not {given['order']!r}"),
        ("pack" in given, "does not go with pack=True: rows take the next example of any lane"),
        (live, "does not go with a log (hs.live): sequences that wait for steps leave their lane"),
        (given["capacity"] is None, "needs a capacity, which bounds how many examples wait"),
    ):
        if wrong:
            raise ValueError(f"lane={given['lane'][1]!r:.80} {why}")


def _check_number_of_columns(options: Options) -> None:
    columns = sum(len(options[name]) for name in _COLUMNS)
    columns += len(options["input_sequences"]) * options["mask"]
    if options.get("pack"):
        columns += len(PACKED) + len(options["initial_states"])
    most = limits.MAX_COLUMNS - _OWN_COLUMNS - bool(options["left"]) - bool(options["right"])
    if columns > most:
        raise ValueError(
            f"input_sequences, input_context and initial_states name {columns} columns; the "
            f"most is {most}"
        )


# Columns


def checked_columns(
    argument: str, prefix: str, value: object, *, or_none: bool = False
) -> list[str] | dict[str, str]:
    """Return columns by their names in a batch, sorted; a list where each has its own name."""
    if isinstance(value, Mapping):
        names = sorted(block_name(f"a name in {argument}", prefix, name) for name in value)
        columns = {name: checked_name(f"{argument}[{name!r}]", value[name]) for name in names}
        if not columns and not or_none:
            raise ValueError(f"{argument} is empty: at least one column is wanted")
        plain = all(name == column for name, column in columns.items())
        return list(columns) if plain else columns
    hint = ", [] where there are none" if value is None and or_none else ""
    if isinstance(value, str):
        hint = f": [{value!r:.80}]"
    wanted = f"a list of columns' names, or a dict of name to column{hint}"
    check_kind(argument, value, (list, tuple), wanted)
    if not value and or_none:
        return []
    names = checked_names(argument, value, None)
    return sorted(block_name(f"{argument}[{i}]", prefix, name) for i, name in enumerate(names))


def columns_by_name(option: list[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the column of each name, of an option made by ``checked_columns``."""
    return dict(option) if isinstance(option, Mapping) else {name: name for name in option}


# The schema


def fitted(options: Options, known: Mapping[str, Field]) -> dict[str, Any]:
    """Return the options of the shape, completed by the schema of an example.

    TypeError or ValueError, which names argument and column, where they do not go together.
    """
    if options["input_key"] is not None:
        key = f"input_key={options['input_key']!r}"
        field = field_of(key, options["input_key"], known)
        if field.dtype != BYTES and not field.dtype.startswith(("int", "uint")):
            raise TypeError(
                f"{key} is {field}; it must be of strings or integers.  Without input_key the "
                "number of each example in the source is its key"
            )
        if field.shape:
            raise ValueError(f"{key} is {field}; it must be one string or integer per example")
    _fit_sequences(options, known)
    sequences = columns_by_name(options["input_sequences"])
    fields = {name: known[column] for name, column in sequences.items()}
    check_padding(options["padding_values"] or {}, options["mask"], fields, fields)
    for name, column in columns_by_name(options["input_context"]).items():
        fixed_field(_named("input_context", name, column), column, known)
    states = []
    for state in options["initial_states"]:
        if state["kind"] == "column":
            what = f"initial_states[{state['name']!r}]={state['value']!r}"
            brought = fixed_field(what, state["value"], known)
            state = {**state, "dtype": brought.dtype, "shape": list(brought.shape)}
        states.append(state)
    ranks = [len(state["shape"]) + 1 for state in states]
    for name in ("input_sequences", "input_context"):
        columns = columns_by_name(options[name]).values()
        ranks += [len(known[column].shape) + 1 for column in columns]
    ranks += [2] * len(sequences) * options["mask"]
    ranks += [2, 2, 2] * bool(options.get("pack"))
    check_rows(options["batch_size"], ranks, bool(options.get("pack")))
    return {**options, "initial_states": states}


def check_rows(batch_size: int, ranks: Collection[int], packed: bool = False) -> int:
    """Raise ValueError where a batch has too many rows for the header of its message.

    ``ranks`` are those of its columns, which the header describes, too.  Return the number of
    examples that a row may have.
    """
    columns = sum(8 * (3 + rank) for rank in ranks)
    each = FILL_PLACE.itemsize
    room = limits.MAX_HEADER_BYTES - _HEADER_BYTES - columns
    row = SEGMENT_PLACE.itemsize + packed * (_LEAST_PACKED - 1) * each
    most = room // row
    if batch_size > most:
        raise ValueError(
            f"batch_size={batch_size} is too large: the header of a batch's message describes each "
            f"of its segments in {row} bytes and its {len(ranks)} columns in "
            f"{columns}, and has at most {limits.MAX_HEADER_BYTES}; the most is {max(0, most)}.  "
            "Declare more partitions or connect more ranks for more segments at a time"
        )
    return 1 + packed * (room // batch_size - SEGMENT_PLACE.itemsize) // each


def _named(argument: str, name: str, column: str) -> str:
    return f"{argument}: {name!r}" if name == column else f"{argument}[{name!r}]={column!r}"


def _fit_sequences(options: Options, known: Mapping[str, Field]) -> None:
    first: tuple[str, int] | None = None  # of those whose number of steps is fixed
    for name, column in columns_by_name(options["input_sequences"]).items():
        what = _named("input_sequences", name, column)
        field = field_of(what, column, known)
        if not field.shape:
            raise ValueError(f"{what} is {field}; it must be a sequence of steps")
        steps, *inner = field.shape
        if None in inner:
            raise ValueError(
                f"{what} is {field}; only the number of its steps may vary: where that is so, "
                f"declare its feature, as hs.sequence({field.dtype!r}, shape)"
            )
        check_full(what, field)
        if steps is None:
            continue
        if first is not None and steps != first[1]:
            raise ValueError(
                f"{what} has {steps} steps, {first[0]!r} has {first[1]}: all sequences of an "
                "example must be equally long"
            )
        first = first or (column, steps)
    unroll, stride = options["num_unroll"], options["stride"] or options["num_unroll"]
    if first is None or options["pad"]:
        return
    if first[1] < unroll or (first[1] - unroll) % stride:
        raise ValueError(
            f"input_sequences: {first[0]!r} has {first[1]} steps, which is {not_whole(options)}: "
            "that needs batch_sequences_with_states(pad=True)"
        )


def not_whole(options: Options) -> str:
    """Describe why segments do not fit a number of steps without padding."""
    unroll, stride = options["num_unroll"], options["stride"]
    if stride is None:
        return f"no multiple of num_unroll={unroll}"
    return f"not num_unroll={unroll} and a multiple of stride={stride} more"
