"""From the words of a command line to an exit code.

Only the module of the given command is imported, so ``headrace --help`` and commands
that need no numpy do not wait for it.  To add a command: a line in ``COMMANDS``, and a module of
its name beside this one.

    # server/headrace_server/cli/greet.py
    @with_options(Option("word", "text"), JSON)
    def greet(options: Namespace) -> None:
        # its docstring describes the command and its options to users

The function gets the options by name and may return an exit code (see ``exits``).  Errors are
printed here, so a command prints results only: on standard output, as JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from headrace_proto import __version__

from ..process.log_lines import log_to_stderr
from ..process.option import Option, described
from . import exits
from .options import add_options, settled


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    try:
        run, options = _read(list(sys.argv[1:] if arguments is None else arguments))
        log_to_stderr()
        code = run(options)
        print(end="", flush=True)  # which does nothing where standard output is closed
        return exits.WELL if code is None else code
    except BrokenPipeError:  # the reader of its output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.FAILED
    except exits.SHOWN as error:
        print(f"headrace: {exits.paragraph(error)}", file=sys.stderr)
        return exits.code_of(error)


def _read(words: list[str]) -> tuple[Callable[[Namespace], int | None], Namespace]:
    """Return the command of a line and its options.  SystemExit where the line is wrong."""
    parser = argparse.ArgumentParser(
        prog="headrace", description="A feeding server for training on long sequences."
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    first = next((word for word in words if not word.startswith("-")), None)
    asked = None
    for name, summary in COMMANDS.items():
        part = commands.add_parser(name, help=summary)
        if name == first:
            asked = command(name)
            part.description = asked.description
            add_options(part, asked.options)
    place = words.index(first) if asked is not None and first is not None else len(words)
    if asked is None or place:  # an option of headrace itself, or an error
        parser.parse_args(words)
    # Positional words may stand before, between and after options.
    given = commands.choices[str(first)].parse_intermixed_args(words[place + 1 :])
    assert asked is not None
    return asked.run, settled(asked.options, given, os.environ)


#: Each command and what it is for.
COMMANDS = {
    "serve": "serve one or more pipelines until stopped",
    "preview": "show the first batches of a pipeline",
    "check": "validate pipelines and their files, and weigh their batches",
    "convert": "write the examples of a source as Arrow files",
    "snapshot": "store all of a feed's state as it is now; print the token",
    "bench": "measure how fast a running feed delivers batches",
    "keygen": "make keys, with which a server lets in only its trainers",
    "status": "show the state of a server and its bottleneck",
    "inspect": "show where a sequence is and which trainer has it",
    "drain": "stop a server once its trainers have committed",
    "end": "close a feed for good: loops end after the rows already read",
    "restart": "start a feed from its beginning",
    "log": "list and show logs of live data, push a file to one, end sequences, or close it",
}


@dataclass(frozen=True)
class Command:
    """A command; ``run`` returns an exit code, or None for 0."""

    description: str
    options: tuple[Option, ...]
    run: Callable[[Namespace], int | None]


#: Commands in a module of another name.
_ELSEWHERE = dict.fromkeys(("drain", "end", "restart", "snapshot", "inspect", "status"), "remote")


def with_options(*options: Option) -> Callable[[Callable[[Namespace], int | None]], Command]:
    """Make a function a command that has these options.

    Its docstring describes the command, and has the help texts of options that have none: ``word:
    the text that is said``.
    """

    def declared(run: Callable[[Namespace], int | None]) -> Command:
        description, helps = described(run.__doc__)
        listed = (o if o.help else replace(o, help=helps.get(o.name, "")) for o in options)
        return Command(description, tuple(listed), run)

    return declared


def command(name: str) -> Command:
    """Import the module of a command, and return the command."""
    module = import_module(f"{__package__}.{_ELSEWHERE.get(name, name)}")
    found: Command = getattr(module, name)
    return found
