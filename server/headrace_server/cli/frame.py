"""From the words of a command line to an exit code.

Only the module of the given command is imported, so ``headrace --help`` and commands
that need no numpy do not wait for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from headrace_proto import __version__
from headrace_proto.errors import DataError

from . import exits
from .options import Option, add_options, in_options
from .places import settled
from .table import COMMANDS, Command, command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    known: tuple[Option, ...] = ()
    try:
        asked, options = _read(list(sys.argv[1:] if arguments is None else arguments))
        known = asked.options
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        code = asked.run(options)
        sys.stdout.flush()
        return exits.WELL if code is None else code
    except BrokenPipeError:  # the reader of its output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.FAILED
    except exits.SHOWN as error:
        text = exits.paragraph(error)
        if not isinstance(error, (ImportError, DataError)):  # those speak of the user's code
            text = in_options(text, known)
        print(f"headrace: {text}", file=sys.stderr)
        return exits.code_of(error)


def _read(words: list[str]) -> tuple[Command, argparse.Namespace]:
    """Return the command of a line and its options; SystemExit where the line is wrong."""
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
            add_options(part, asked.options, asked.configured)
    given = parser.parse_args(words)
    assert asked is not None
    return asked, settled(asked.options, given, os.environ if asked.configured else {})
