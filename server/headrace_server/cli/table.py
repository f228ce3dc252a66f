"""All commands.  To add one: a line here, and a module of its name beside this one.

    # server/headrace_server/cli/greet.py
    COMMAND = Command("Says a word.", (Option("word", "text", "what is said"), JSON), run)

``run`` gets the options by name and gives an exit code (see ``exits``).  Errors are printed
by the frame, so a command prints results only: on standard output, as JSON with ``--json``.
"""

from __future__ import annotations

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
    """A command, which its module declares as ``COMMAND``.

    ``configured``: its options are also taken from the environment and a file, see ``places``.
    """

    description: str
    options: tuple[Option, ...]
    run: Callable[[Namespace], int]
    configured: bool = False


#: Commands of one module, which has them by name as ``COMMANDS``.
_TOGETHER = dict.fromkeys(("drain", "end", "restart", "snapshot"), "orders")


def command(name: str) -> Command:
    """Import the module of a command, and return the command."""
    module = import_module(f"{__package__}.{_TOGETHER.get(name, name)}")
    found = module.COMMANDS[name] if name in _TOGETHER else module.COMMAND
    assert isinstance(found, Command)
    return found
