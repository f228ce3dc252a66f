"""Options from three places, of which the upper one prevails:

    command line    --state-dir DIR
    environment     HEADRACE_STATE_DIR=DIR        several values: words as in a shell
    default

A value that is not of its option's kind is refused with the place where it stands.  Variables of
other names are other programs': Kubernetes makes HEADRACE_PORT for a service called headrace.  An
empty variable counts as none.

A name is ``lease_ttl``; on the command line it is ``--lease-ttl``, and in Python ``lease_ttl_s``,
by which errors of Python's functions name it: ``as_options`` puts the option in its place.
"""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from ..process.option import KINDS, Option

#: For a program that reads the output of a command.
JSON = Option("json", "flag", "print one JSON object, for programs", default=False)
PREFIX = "HEADRACE_"
_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_PARSERS: dict[str, Callable[[str], object]] = {
    "integer": int,
    "seconds": float,
    "flag": lambda text: _WORDS[text.lower()],
}


def add_options(parser: argparse.ArgumentParser, options: tuple[Option, ...]) -> None:
    """Let a parser read these options; it leaves out those that are not given.

    Values may come from the environment too, so no option need be given, and any flag can be
    denied: ``--no-…``.
    """
    for option in options:
        text = option.text.replace("%", "%%")
        if option.kind == "flag":
            action = argparse.BooleanOptionalAction
            parser.add_argument(option.flag, action=action, default=argparse.SUPPRESS, help=text)
            continue
        settings: dict[str, Any] = {
            "type": _PARSERS.get(option.kind, str),
            "metavar": option.placeholder if option.positional or not option.choices else None,
            "choices": None if option.positional else option.choices or None,
            "default": argparse.SUPPRESS,
            "help": text,
        }
        if option.positional:
            parser.add_argument(option.name, nargs="*" if option.many else "?", **settings)
        else:
            flags = [f"-{option.short}", option.flag] if option.short else [option.flag]
            parser.add_argument(*flags, action="append" if option.many else "store", **settings)


def variable(option: Option) -> str:
    """Return the name of the environment variable of an option."""
    return PREFIX + option.name.upper()


def settled(
    options: tuple[Option, ...], given: Namespace, environment: Mapping[str, str]
) -> Namespace:
    """Return all options by name; ValueError or TypeError names the place of a fault."""
    values: dict[str, object] = {}
    for option in options:
        value = getattr(given, option.name, None)
        if value is not None:
            where = f"{option.shown} {value!r:.80}"
            value = tuple(value) if option.many else option.check(value, option.shown, where)
        elif text := environment.get(variable(option)):
            value = _read(option, variable(option), text)
        else:
            value = option.default
        if option.positional and not value and option.default is None:
            raise ValueError(f"no {option.placeholder} is given")
        values[option.name] = value
    return Namespace(**values)


def _read(option: Option, name: str, text: str) -> object:
    """Return a value from a text of the environment."""
    where = f"{name}={text!r:.80} in the environment"
    try:
        if option.many:
            return tuple(shlex.split(text))
        value = _PARSERS.get(option.kind, str)(text)
    except (ValueError, KeyError):
        kind = "a list of words" if option.many else KINDS[option.kind][0]
        raise ValueError(f"{where} is not {kind}") from None
    return option.check(value, f"{name} in the environment", where)


def as_options(text: str, options: tuple[Option, ...]) -> str:
    """Return a text with options in place of Python's arguments: ``--workers 2`` of ``workers=2``.

    A name that stands alone is replaced where it is no common word.
    """
    for one in options:
        text = re.sub(
            rf"(?<![\w.-]){one.argument}=(True\b|(?=\S))?",
            lambda found, flag=one.flag: flag + " " * (found[1] == ""),  # type: ignore[misc]
            text,
        )
        if "_" in one.argument:
            text = re.sub(rf"(?<![\w./'\"-]){one.argument}(?![\w/'\"=])", one.flag, text)
    return text


def parted(named: str) -> tuple[str, str]:
    """Split a target: the name of the feed (or none), and the rest."""
    name, sign, target = named.partition("=")
    if sign and not name:
        raise ValueError(f"{named!r:.120} has no name of a feed before the =")
    return (name, target) if sign and ":" not in name and "/" not in name else ("", named)
