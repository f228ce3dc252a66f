"""The options of commands on the command line, and those that several commands share.

A name is ``lease_ttl``; on the command line it is ``--lease-ttl``, and in Python ``lease_ttl_s``:
errors of Python's functions name the argument, and ``in_options`` has them name the option.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..process.option import Option

__all__ = ["JSON", "Option", "add_options", "in_options", "on_line", "with_defaults"]

#: Before a name that is neither a part of a path nor of another name, nor cited.
_ALONE = r"(?<![\w./'\"-])"

_TYPES: dict[str, Callable[[str], Any]] = {"integer": int, "seconds": float}

#: For a program that reads the output of a command.
JSON = Option("json", "flag", "print one JSON object, for programs", default=False)


def add_options(
    parser: argparse.ArgumentParser, options: tuple[Option, ...], configured: bool = False
) -> None:
    """Let a parser read these options; it leaves out those that are not given.

    ``configured``: values may come from other places too, so no option need be given, and any flag
    can also be denied, like one that is on by default.
    """
    for option in options:
        text = option.text.replace("%", "%%")
        if option.kind == "flag":
            denied = configured or option.default
            action = argparse.BooleanOptionalAction if denied else "store_true"
            parser.add_argument(option.flag, action=action, default=argparse.SUPPRESS, help=text)
            continue
        settings: dict[str, Any] = {
            "type": _TYPES.get(option.kind, str),
            "metavar": option.placeholder if not option.choices else None,
            "choices": option.choices or None,
            "default": argparse.SUPPRESS,
            "help": text,
        }
        if option.positional:
            free = configured or option.default is not None
            nargs = ("*" if free else "+") if option.many else "?" if free else None
            parser.add_argument(option.name, nargs=nargs, **settings)
        else:
            flags = [f"-{option.short}", option.flag] if option.short else [option.flag]
            parser.add_argument(*flags, action="append" if option.many else "store", **settings)


def in_options(text: str, options: tuple[Option, ...]) -> str:
    """Return an error of Python's functions with a command's options in place of arguments.

    ``state_dir='x'`` becomes ``--state-dir 'x'``, ``insecure=True`` becomes ``--insecure``.  A name
    without its value is an argument only where it has an underscore: others are words.
    """
    for option in options:
        name = option.argument or option.name
        flag = option.placeholder if option.positional else option.flag
        if option.kind == "flag":
            text = re.sub(rf"{_ALONE}{name}=True\b", flag, text)
            text = re.sub(rf"{_ALONE}{name}=False\b", flag.replace("--", "--no-", 1), text)
        text = re.sub(rf"{_ALONE}{name}=(?=[\w'\"\[(-])", f"{flag} ", text)
        if "_" in name:
            text = re.sub(rf"{_ALONE}{name}\b(?![=/.(\w'\"])", flag, text)
    return text


def on_line(options: tuple[Option, ...], given: argparse.Namespace) -> dict[str, Any]:
    """Return the values on the command line, checked, by name."""
    values = {}
    for option in options:
        if option.name in given:
            value = getattr(given, option.name)
            flag = option.placeholder if option.positional else option.flag
            checked = tuple(value) if option.many else option.check(value, f"{flag} {value!r:.80}")
            values[option.name] = checked
    return values


def with_defaults(options: tuple[Option, ...], given: Mapping[str, Any]) -> argparse.Namespace:
    """Return all options by name: the given values, and the default of every other."""
    return argparse.Namespace(**{one.name: given.get(one.name, one.default) for one in options})
