"""The server under test: feeds of these modes, and options of ``hs.run``, as JSON.

    python -m tests.chaos.server '{"modes": ["plain"], "size": 500, "bind": ADDRESS, …}'

It lives until its standard input ends, or SIGTERM comes, after which trainers may commit for a
moment.  It ends with 3 when the server has failed, so that whoever looks after it starts it again.
"""

from __future__ import annotations

import json
import select
import signal
import sys
from types import FrameType

import headrace_server as hs

from .feeds import pipeline

_ASK_S = 0.2
_DRAIN_S = 0.5


class Stopped(BaseException):
    """SIGTERM came."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Stopped


def ended(within_s: float = 0) -> bool:
    """Return whether the other end of the standard input is closed."""
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    try:
        serve()
    except Stopped:
        print("stopped", flush=True)


def serve() -> None:
    options = json.loads(sys.argv[1])
    modes, size = options.pop("modes"), options.pop("size")
    feeds = {mode: pipeline(mode, size) for mode in modes}
    with hs.run(feeds, insecure=True, **options) as server:  # the network is that of the run
        print("up", flush=True)
        try:
            while not server.wait(_ASK_S) and not ended():
                pass
        except Stopped:
            server.drain(_DRAIN_S)
            raise
        except Exception as error:
            print(f"failed: {error}", file=sys.stderr, flush=True)
            sys.exit(3)
        failed = server.failed_feeds()
        if failed:
            print(f"failed: {failed}", file=sys.stderr, flush=True)
        while not ended(_ASK_S):
            server.check()


if __name__ == "__main__":
    main()
