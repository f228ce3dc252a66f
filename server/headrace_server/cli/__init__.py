"""The command ``headrace``: its commands, in a frame that they share.

frame ── imports the one that was asked for ──► serve, preview, check …
  │                                                │
options: where values come from             exits: how all of them end
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code.

    The import is in here, so that Ctrl-C during the import is answered, too.
    """
    try:
        from .frame import main as run

        return run(arguments)
    except KeyboardInterrupt:
        from .exits import INTERRUPTED

        print("headrace: given up", file=sys.stderr)
        return INTERRUPTED
