"""Options from four places, of which the upper one prevails:

    command line    --state-dir DIR
    environment     HEADRACE_STATE_DIR=DIR        several values: words as in a shell
    file            state_dir = "DIR"             --config FILE.toml or FILE.yaml
    default

A value that is not of its option's kind, and a key that is no option's, is refused with the place
where it stands and the name that was probably meant.  Variables of other names are other programs'
(Kubernetes makes HEADRACE_PORT for a service called headrace) unless they look like a slip.
An empty variable counts as none.  Paths in a file are relative to the directory of the file.
"""

from __future__ import annotations

import difflib
import os
import shlex
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..files.extras import require
from ..process.option import KINDS, Option
from .options import on_line, with_defaults

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
#: How alike a slip is to what was meant, as ``difflib`` counts.
_SLIP = 0.8


def variable(option: Option) -> str:
    """Return the name of the environment variable of an option."""
    return PREFIX + option.name.upper()


def settled(
    options: tuple[Option, ...], given: Namespace, environment: Mapping[str, str]
) -> Namespace:
    """Return all options by name.  ValueError or TypeError names the place of a fault."""
    nearer = _from_environment(options, environment) | on_line(options, given)
    file = nearer.get(CONFIG.name)
    in_file = {} if file is None else _from_file(options, file)
    values = with_defaults(options, in_file | nearer)
    for option in options:
        if option.positional and not getattr(values, option.name):
            raise ValueError(
                f"no {option.metavar} is given: not on the command line, not as "
                f"{variable(option)}, and not as {option.name} in a file of --config"
            )
    return values


def _from_environment(
    options: tuple[Option, ...], environment: Mapping[str, str]
) -> dict[str, Any]:
    known = {variable(option): option for option in options}
    found = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or not text:
            continue
        if name in known:
            found[known[name].name] = _read(known[name], name, text)
        elif meant := _meant(name.removeprefix(PREFIX), (o.name.upper() for o in options)):
            raise ValueError(
                f"{name}={text!r:.80} in the environment is no option: {PREFIX}{meant} is one"
            )
    return found


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
            meant = _meant(str(key).replace("-", "_"), known)
            hint = f"is {meant} meant?" if meant else f"there are {', '.join(known)}"
            raise ValueError(f"{path}: {key!r:.80} is no option: {hint}")
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
        except ValueError as error:  # also where it is not UTF-8
            raise ValueError(f"{path} is not TOML: {error}") from None
    yaml = require("yaml", "yaml", f"--config {path}")
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise TypeError(f"{path} holds a {type(found).__name__}, not options by name")
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
        return tuple(_text(option, one, where, path) for one in values)
    if option.kind in _PARSERS:
        return option.check(value, where)
    return _text(option, value, where, path)


def _text(option: Option, value: Any, where: str, path: str) -> str:
    if not isinstance(value, str):
        hint = " (in quotes it would be)" if isinstance(value, (bool, int, float)) else ""
        raise TypeError(f"{where} is a {type(value).__name__}, not a text{hint}")
    text: str = option.check(value, where)
    if option.kind == "path" or (option.kind == "target" and ".py:" in text):
        return os.path.join(os.path.dirname(os.path.abspath(path)), text)
    return text


def _meant(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), 1, _SLIP)), None)
