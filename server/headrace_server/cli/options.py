"""Options from four places, of which the upper one prevails:

    command line    --state-dir DIR
    environment     HEADRACE_STATE_DIR=DIR        several values: words as in a shell
    file            state_dir = "DIR"             --config FILE.toml or FILE.yaml
    default

A value that is not of its option's kind, and a key that is no option's, is refused with the place
where it stands.  Variables of other names are other programs': Kubernetes makes HEADRACE_PORT for a
service called headrace.  An empty variable counts as none.  Paths in a file are relative to the
directory of the file.

A name is ``lease_ttl``; on the command line it is ``--lease-ttl``, and in Python ``lease_ttl_s``,
by which errors of Python's functions name it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tomllib
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from headrace_proto.errors import kind_of

from ..files.extras import require
from ..process.option import KINDS, Option

#: For a program that reads the output of a command.
JSON = Option("json", "flag", "print one JSON object, for programs", default=False)
PREFIX = "HEADRACE_"
CONFIG = Option(
    "config",
    "path",
    "a TOML or YAML file with any of these options, by names with underscores",
    metavar="FILE",
)
_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_PARSERS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "seconds": float,
    "flag": lambda text: _WORDS[text.lower()],
}


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
            "type": _PARSERS.get(option.kind, str),
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


def variable(option: Option) -> str:
    """Return the name of the environment variable of an option."""
    return PREFIX + option.name.upper()


def settled(
    options: tuple[Option, ...], given: Namespace, environment: Mapping[str, str]
) -> Namespace:
    """Return all options by name; ValueError or TypeError names the place of a fault."""
    found = _from_environment(options, environment) | _on_line(options, given)
    if (file := found.get(CONFIG.name)) is not None:
        found = _from_file(options, file) | found
    values = {one.name: found.get(one.name, one.default) for one in options}
    for option in options:
        if option.positional and not values[option.name]:
            where = (
                f": not on the command line, not as {variable(option)}, and not as {option.name} "
                "in a file of --config"
            )
            raise ValueError(f"no {option.metavar} is given{where * (CONFIG in options)}")
    return Namespace(**values)


def _on_line(options: tuple[Option, ...], given: Namespace) -> dict[str, Any]:
    return {
        one.name: tuple(value) if one.many else one.check(value, f"{one.shown} {value!r:.80}")
        for one in options
        if (value := getattr(given, one.name, None)) is not None
    }


def _from_environment(
    options: tuple[Option, ...], environment: Mapping[str, str]
) -> dict[str, Any]:
    known = {option: (variable(option), environment.get(variable(option))) for option in options}
    return {one.name: _read(one, name, text) for one, (name, text) in known.items() if text}


def _read(option: Option, name: str, text: str) -> Any:
    """Return a value from a text of the environment."""
    where = f"{name}={text!r:.80} in the environment"
    try:
        if option.many:
            return tuple(shlex.split(text))
        value = _PARSERS.get(option.kind, str)(text)
    except (ValueError, KeyError):
        kind = "a list of words" if option.many else KINDS[option.kind][0]
        raise ValueError(f"{where} is not {kind}") from None
    return option.check(value, where)


def _from_file(options: tuple[Option, ...], path: str) -> dict[str, Any]:
    known = {option.name: option for option in options if option is not CONFIG}
    found = {}
    for key, value in _parsed(path).items():
        if key not in known:
            raise ValueError(f"{path}: {key!r:.80} is no option: there are {', '.join(known)}")
        found[key] = _checked(known[key], value, path)
    return found


def _parsed(path: str) -> dict[Any, Any]:
    """Return the content of a file, as a dict."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".toml", ".yaml", ".yml"):
        raise ValueError(f"--config {path}: its name ends in neither .toml nor .yaml")
    with open(path, "rb") as stream:
        data = stream.read()
    if ending == ".toml":
        try:
            return tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:  # also where it is not UTF-8
            raise ValueError(f"{path} is not TOML: {error}") from None
    yaml = require("yaml", "yaml", f"--config {path}")
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise TypeError(f"{path} holds {kind_of(found)}, not options by name")
    return found


def _checked(option: Option, value: Any, path: str) -> Any:
    """Return a value from a file, in the form that the command line would give it."""
    where = f"{path}: {option.name}={value!r:.80}"
    if option.many:
        if option.kind == "target" and isinstance(value, dict):
            return tuple(
                f"{name}={_text(option, target, f'{where}: {name}', path)}"
                for name, target in value.items()
            )
        values = value if isinstance(value, list) else [value]
        return tuple(_named(option, one, where, path) for one in values)
    if option.kind in _PARSERS:
        return option.check(value, where)
    return _text(option, value, where, path)


def parted(named: str) -> tuple[str, str]:
    """Split a target: the name of the feed (or none), and the rest."""
    name, sign, target = named.partition("=")
    if sign and not name:
        raise ValueError(f"{named!r:.120} has no name of a feed before the =")
    return (name, target) if sign and ":" not in name and "/" not in name else ("", named)


def _named(option: Option, value: Any, where: str, path: str) -> str:
    """Return one of several values as a text; a target may have the name of its feed before it."""
    given = option.kind == "target" and isinstance(value, str)
    name, rest = parted(value) if given else ("", value)
    text = _text(option, rest, where, path)
    return f"{name}={text}" if name else text


def _text(option: Option, value: Any, where: str, path: str) -> str:
    if not isinstance(value, str):
        hint = " (in quotes it would be)" if isinstance(value, (bool, int, float)) else ""
        raise TypeError(f"{where} is {kind_of(value)}, not a text{hint}")
    text: str = option.check(value, where)
    if option.kind == "path" or (option.kind == "target" and ".py:" in text):
        return os.path.join(os.path.dirname(os.path.abspath(path)), text)
    return text
