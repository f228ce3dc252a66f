"""Checks of the arguments that give batches static shapes by padding, or leave rows unpadded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_proto import limits
from headrace_proto.schema import OFFSETS, Field

from .argument_checks import check_kind, checked_int, checked_name
from .declaration import Plain

#: A dimension of more elements than this is a mistake in a unit.
_MOST = 2**31 - 1

_PADDING = ("pad_to_multiple", "pad_to", "pad_to_boundary", "ragged")

PadTo = Mapping[str, Any]


def padded(options: dict[str, Any], known: Mapping[str, Field] | None) -> dict[str, Plain]:
    """Return the options of a shape, those of padding left out where they are not given."""
    asked = {name: options.pop(name, None) for name in _PADDING}
    given = {
        name: value for name, value in asked.items() if value is not None and value is not False
    }
    if "pad_to" in given:
        given["pad_to"] = _sizes(given["pad_to"], known)
    if given.pop("ragged", False):
        for name, value in ({"dynamic_pad": True} if options["dynamic_pad"] else given).items():
            raise ValueError(f"ragged=True pads nothing: leave out {name}={value!r}")
        if known is not None and (fault := ragged_fault(known)):
            raise ValueError(f"ragged=True: {fault}")
        return {**options, "ragged": True}
    for name, value in given.items():
        if not options["dynamic_pad"]:
            raise ValueError(f"{name}={value!r} needs dynamic_pad=True, which pads rows at all")
    return options | given


def _sizes(value: Any, known: Mapping[str, Field] | None) -> dict[str, list[int | None]]:
    check_kind("pad_to", value, Mapping, "a dict of column to size")
    if not value:
        raise ValueError("pad_to is empty: at least one column is wanted")
    sizes = {}
    for name, size in value.items():
        what = f"pad_to[{checked_name('a column in pad_to', name)!r}]"
        listed = list(size) if isinstance(size, (list, tuple)) else [size]
        sizes[name] = [checked_int(what, one, 1, _MOST, or_none=len(listed) > 1) for one in listed]
        if known is None:
            continue
        if name not in known:
            raise ValueError(f"{what}: there is no such column, only {', '.join(known)}")
        if fault := size_fault(known[name], sizes[name]):
            raise ValueError(f"{what}={size!r}: {fault}")
    return sizes


def size_fault(field: Field, sizes: list[int | None]) -> str:
    """Return the reason why a column can not be padded so, or ""."""
    if not field.ragged_dims:
        return f"the column is {field}, which does not vary"
    if len(sizes) > field.ragged_dims:
        return f"the column is {field}, of which {field.ragged_dims} dimensions may vary"
    for size, dim in zip(sizes, field.shape, strict=False):
        if dim is not None and size not in (None, dim):
            return f"the column is {field}, and {dim} is the size of that dimension"
    return ""


def ragged_fault(fields: Mapping[str, Field]) -> str:
    """Return the reason why batches of these columns can not be ragged, or ""."""
    varying = {name: field for name, field in fields.items() if field.ragged_dims}
    for name, field in varying.items():
        if field.ragged_dims > 1:
            return (
                f"column {name!r} is {field}: only the first dimension of a ragged column varies; "
                "declare dynamic_pad=True, or select other columns"
            )
        if len(name) > limits.MAX_NAME - len(OFFSETS):
            most = limits.MAX_NAME - len(OFFSETS)
            return f"column {name!r:.80} has a name of more than {most} characters"
    if len(fields) + len(varying) > limits.MAX_COLUMNS:
        return (
            f"{len(fields)} columns, {len(varying)} of them ragged, are more than "
            f"{limits.MAX_COLUMNS} arrays: the offsets of each ragged column count, too"
        )
    return "" if varying else f"no column varies, of {', '.join(map(str, fields))}; leave it out"
