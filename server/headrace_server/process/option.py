"""One option of a server, of a command, or of both: its name, kind, bounds and help text.

    Option ─► parser, --help, environment variable, key in a file, argument in Python, docs

``check`` judges a value the same wherever it was given; its ``name`` there begins each error.
"""

from __future__ import annotations

import inspect
import numbers
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headrace_proto.address import refuse_surrogates
from headrace_proto.errors import kind_of
from headrace_proto.placement import share_of

#: A target is ``FILE.py:NAME``.
Kind = Literal["text", "path", "target", "integer", "seconds", "flag", "share", "ports"]


#: Kinds of which not everything can be a value: their name in errors, their types, their form.
KINDS: dict[str, tuple[str, Any, Callable[[Any], object]]] = {
    "integer": ("an integer", numbers.Integral, int),
    "seconds": ("a number of seconds", numbers.Real, float),
    "flag": ("true or false", bool, bool),
    "path": ("a path", (str, bytes, os.PathLike), os.fsdecode),
}
_METAVARS = {
    "text": "TEXT",
    "path": "DIR",
    "integer": "N",
    "seconds": "SECONDS",
    "share": "I/N",
    "ports": "FIRST-LAST",
}
#: Upper bound of numbers that declare none; a wait of as many seconds is one that the system takes.
_MOST = 10**9
_MOST_PORT = 65_535
#: Linux takes paths of fewer bytes than the first (PATH_MAX), and names of at most the second.
_MOST_PATH, _NAME = 4096, 255


def described(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description in a docstring, and the help texts of options or metrics after it.

    Each begins with ``NAME: `` or ``NAME[LABEL,LABEL]: ``; its further lines are indented.
    """
    text = inspect.cleandoc(doc or "")
    listed = re.findall(r"^(\w+(?:\[[\w,]+\])?): (.+(?:\n  .+)*)", text, re.MULTILINE)
    helps = {name: " ".join(help.split()) for name, help in listed}
    return re.split(r"^\w+: ", text, maxsplit=1, flags=re.MULTILINE)[0].strip(), helps


@dataclass(frozen=True)
class Option:
    """One option.

    ``default`` is the value where it is not given; where that is None, ``absent`` may describe what
    then happens.  ``many``: it may be repeated, and gives a tuple.  ``positional``: it has no
    dashes, and must be given unless it has a default.  ``short``: one letter that also names it.
    ``argument``: its name in Python's functions, where that is another.  ``least`` and ``most``
    bound a number.  ``needs_state``: it is refused where there is no state directory.
    """

    name: str
    kind: Kind
    help: str = ""
    default: Any = None
    absent: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False
    positional: bool = False
    short: str = ""
    argument: str = ""
    least: float | None = None
    most: float = _MOST
    needs_state: bool = False

    @property
    def flag(self) -> str:
        """The option as it is written on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def shown(self) -> str:
        """The option as errors name it on the command line."""
        return self.placeholder if self.positional else self.flag

    @property
    def placeholder(self) -> str:
        """The word that stands for its value in a text."""
        return self.metavar or "|".join(self.choices) or _METAVARS.get(self.kind, "")

    @property
    def meaning(self) -> str:
        """The help text, with that it may be repeated."""
        return self.help + ("; may be repeated" if self.many and not self.positional else "")

    @property
    def text(self) -> str:
        """The meaning, the default and the bounds."""
        default = self.default_text and f"default: {self.default_text}"
        rest = "; ".join(filter(None, (default, self.allowed)))
        return f"{self.meaning} ({rest})" if rest else self.meaning

    @property
    def default_text(self) -> str:
        """The default in words; empty where there is none."""
        if self.absent or self.default in (None, False, ()):
            return self.absent
        if self.default is True:
            return "on"
        if self.many:
            return " ".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def allowed(self) -> str:
        """The bounds of a number in words; empty where it has none."""
        if self.least is None:
            return ""
        return f"at least {self.least}" if self.most >= _MOST else f"{self.least} … {self.most}"

    def check(self, value: Any, name: str, shown: str = "") -> Any:
        """Return the value in the form of its kind; TypeError or ValueError names it.

        ``shown`` is the name with the value as it was given, by default as in Python.
        """
        where = shown or f"{name}={value!r:.80}"
        if self.kind == "share":
            try:
                return share_of(value)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{where} {error}") from None
        if self.kind == "ports":
            return _ports(value, where)
        if self.kind in KINDS:
            kind, types, form = KINDS[self.kind]
            if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
                raise TypeError(f"{where} is not {kind}, but {kind_of(value)}")
            value = form(value)
        if self.kind == "path":
            _check_path(value, where)
        least = 0 if self.kind == "seconds" and self.least is None else self.least
        if least is not None and not least <= value <= self.most:
            unit = " seconds" if self.kind == "seconds" else ""
            endless = value < least and self.most >= _MOST
            bounds = f"at least {least}" if endless else f"between {least} and {self.most}"
            raise ValueError(f"{name} must be {bounds}{unit}, not {value}")
        if self.choices and not (isinstance(value, str) and value in self.choices):
            raise ValueError(f"{where} is not one of {', '.join(self.choices)}")
        return value


def _ports(value: object, where: str) -> tuple[int, int]:
    """Return the first and last port of "first-last", or of a pair."""
    pair = value.split("-") if isinstance(value, str) else value
    if not isinstance(pair, (tuple, list)) or len(pair) not in (1, 2):
        raise TypeError(f'{where} is not a range of ports "first-last" or (first, last)')
    numbers = [int(p) if isinstance(p, str) and p.isascii() and p.isdigit() else p for p in pair]
    if any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise ValueError(f'{where} is not a range of ports "first-last" or (first, last)')
    if not 1 <= numbers[0] <= numbers[-1] <= _MOST_PORT:
        raise ValueError(
            f"{where}: both ports must be between 1 and {_MOST_PORT}, and the first not the larger"
        )
    return numbers[0], numbers[-1]


def _check_path(path: str, where: str) -> None:
    refuse_surrogates(where, path)
    if not path or "\0" in path:
        raise ValueError(f"{where} is no path: one has a character, and none is NUL")
    if len(name := path.encode()) >= _MOST_PATH or max(map(len, name.split(b"/"))) > _NAME:
        raise ValueError(
            f"{where} is no path: one has less than {_MOST_PATH} bytes, and at most {_NAME} "
            "between two slashes"
        )
