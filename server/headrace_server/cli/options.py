"""What an option is, and the options that several commands share.

From the same entry come the parser, what ``--help`` says of it, the environment variable, the key
in a file (``settings``) and the reference in docs/commands.md.  A name is ``lease_ttl``; on the
command line it is ``--lease-ttl``, and in Python ``lease_ttl_s``: errors of Python's functions name
the argument, and ``in_options`` has them name the option.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["JSON", "Option", "add_options", "in_options", "seconds", "with_defaults"]

#: A target is ``FILE.py:NAME``.
Kind = Literal["text", "path", "target", "integer", "seconds", "flag"]

_METAVARS = {"text": "TEXT", "path": "DIR", "integer": "N", "seconds": "SECONDS"}


def seconds(value: str | float) -> float:
    """A number of seconds; ValueError where a wait can not be as long."""
    found = float(value)
    if not 0 <= found < math.inf:
        raise ValueError(f"{value!r:.80} is not a number of seconds, 0 or more")
    return found


#: Before a name that is neither a part of a path nor of another name, nor cited.
_ALONE = r"(?<![\w./'\"-])"

_TYPES: dict[str, Callable[[str], Any]] = {"integer": int, "seconds": seconds}


@dataclass(frozen=True)
class Option:
    """One option of a command.

    ``default`` is the value where it is not given; where that is None, ``told`` may say what then
    happens.  ``many``: it may be repeated, and gives a tuple.  ``positional``: it has no dashes,
    and must be given unless it has a default.  ``short``: one letter that stands for it, too.
    ``argument``: that of Python's functions, where it has another name.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    told: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False
    positional: bool = False
    short: str = ""
    argument: str = ""

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def placeholder(self) -> str:
        """What stands for its value in a text."""
        return self.metavar or "|".join(self.choices) or _METAVARS.get(self.kind, "")

    @property
    def told_default(self) -> str:
        """The default in words; empty where there is nothing to say."""
        if self.told or self.default in (None, False, ()):
            return self.told
        if self.default is True:
            return "on"
        if self.many:
            return " ".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


#: For a program that reads what a command says.
JSON = Option("json", "flag", "print one JSON object, for programs", default=False)


def add_options(
    parser: argparse.ArgumentParser, options: tuple[Option, ...], configured: bool = False
) -> None:
    """Let a parser read these; it leaves out what is not given.

    ``configured``: there are other places that values may come from, so nothing need be given, and
    any flag can also be denied, as one can that is on by default.
    """
    for option in options:
        text = option.help.replace("%", "%%")
        if option.told_default:
            text += f" (default: {option.told_default})".replace("%", "%%")
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
    """An error of Python's functions with the options of a command in place of arguments.

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


def with_defaults(options: tuple[Option, ...], given: argparse.Namespace) -> argparse.Namespace:
    """All options by name: what is given, and the default of every other."""
    found = vars(given)
    values = {option.name: found.get(option.name, option.default) for option in options}
    many = {option.name for option in options if option.many}
    return argparse.Namespace(
        **{name: tuple(v) if name in many and v is not None else v for name, v in values.items()}
    )
