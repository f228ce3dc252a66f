"""The log of each process of a server, and of the commands: lines that no text in them can forge.

A record that has several lines has them indented, and characters that a terminal would obey are
escaped, whoever sent the text: a trainer, a file, or a function of the user.
"""

from __future__ import annotations

import logging

from headrace_proto.errors import shown


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def log_to_stderr(level: int | str = logging.INFO) -> None:
    """Write records of this level and above to standard error, if nothing else is set up yet."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
