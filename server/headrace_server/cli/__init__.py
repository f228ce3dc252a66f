"""The command ``headrace``: one module for each of its commands, in a frame that they share.

    table ── names ──► frame ── imports the one that was asked for ──► serve, preview, check …
                         │                                                │
                      options: what every option is, once          exits: how all of them end

A command is a module here with a ``COMMAND``, and one line in ``table.py``.
"""

from .frame import main

__all__ = ["main"]
