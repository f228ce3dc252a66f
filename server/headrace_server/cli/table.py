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
    "check": "validate pipelines and their files, and say what they cost",
    "convert": "write the examples of a source as Arrow files",
    "flight": "which rows went to which trainer, at which step, with what end",
    "replay": "serve recorded batches again, as they were handed out",
    "skip": "leave out the examples of recorded batches from now on",
    "snapshot": "keep all of a feed's state as it is now",
    "bench": "measure how fast a feed comes",
    "keygen": "make keys that lock a server for all but its trainers",
    "status": "show what a server does and what holds it up",
    "top": "the same, again and again",
    "inspect": "show where a sequence is and who holds it",
    "drain": "have a server hand out nothing more, and stop",
    "end": "close a feed for good: loops end when what was read is done",
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
