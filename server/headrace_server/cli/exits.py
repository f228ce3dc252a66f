"""The end of a command: its exit code, and the paragraph of an error.

A user's mistake and a failure that has a name never show a traceback.  An error that is none of
these is a fault of the program: its traceback is shown, and Python's exit code is 1.
"""

from __future__ import annotations

import errno
import os

from headrace_proto.errors import HeadraceError, is_mistake, shown

WELL = 0
FAILED = 1
MISTAKE = 2
INTERRUPTED = 130

#: The exit codes of all commands.
MEANINGS = {
    WELL: "ended well, also by a signal that it waits for",
    FAILED: "what was asked for failed: the server, a feed, its data, a connection, the machine",
    MISTAKE: "the command line, a setting or the declaration is wrong",
    INTERRUPTED: "given up by Ctrl-C",
}

#: Errors that are printed as a paragraph.
SHOWN = (HeadraceError, ValueError, TypeError, ImportError, OSError)

#: Numbers of an OSError that is not the user's mistake.
_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def paragraph(error: BaseException) -> str:
    """Return the paragraph of an error; of the system's, the file and the text without a number."""
    if isinstance(error, OSError) and not isinstance(error, HeadraceError) and error.strerror:
        named = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        return shown(f"{named}{error.strerror}")
    return shown(str(error))


def code_of(error: BaseException) -> int:
    """Return the exit code for an error of ``SHOWN``."""
    of_machine = isinstance(error, OSError) and error.errno in _MACHINE
    return MISTAKE if is_mistake(error) and not of_machine else FAILED
