"""All commands.  To add one: a line here, and a module of its name beside this one.

    # server/headrace_server/cli/greet.py
    @with_options(Option("word", "text", "what is said"), JSON)
    def greet(options: Namespace) -> None:
        # its docstring describes the command to users

The function gets the options by name and may return an exit code (see ``exits``).  Errors are
printed by the frame, so a command prints results only: on standard output, as JSON with ``--json``.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from .options import Option

#: Each command and what it is for.
COMMANDS = {
    "serve": "serve one or more pipelines until stopped",
    "preview": "show the first batches of a pipeline",
    "check": "validate pipelines and their files, and estimate their memory",
    "convert": "write the examples of a source as Arrow files",
    "flight": "list which rows went to which trainer, at which step",
    "replay": "serve recorded batches again, as they were handed out",
    "skip": "leave out the examples of recorded batches from now on",
    "snapshot": "store all of a feed's state as it is now; print the token",
    "bench": "measure how fast a running feed delivers batches",
    "keygen": "make keys, with which a server lets in only its trainers",
    "status": "show the state of a server and its bottleneck",
    "top": "show the status continuously",
    "inspect": "show where a sequence is and which trainer has it",
    "drain": "stop a server once its trainers have committed",
    "end": "close a feed for good: loops end after the rows already read",
    "restart": "start a feed from its beginning",
}


@dataclass(frozen=True)
class Command:
    """A command; ``run`` returns an exit code, or None for 0.

    ``configured``: its options are also taken from the environment and a file, see ``places``.
    """

    description: str
    options: tuple[Option, ...]
    run: Callable[[Namespace], int | None]
    configured: bool = False


#: Commands of one module.
_TOGETHER = dict.fromkeys(("drain", "end", "restart", "snapshot"), "orders")


def with_options(
    *options: Option, configured: bool = False
) -> Callable[[Callable[[Namespace], int | None]], Command]:
    """Make a function a command that has these options; its docstring is the description."""
    return lambda run: Command(inspect.getdoc(run) or "", options, run, configured)


def command(name: str) -> Command:
    """Import the module of a command, and return the command."""
    module = import_module(f"{__package__}.{_TOGETHER.get(name, name)}")
    found: Command = getattr(module, name)
    return found
