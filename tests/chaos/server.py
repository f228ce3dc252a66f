"""The server under test: one feed, a fixed address, a state directory.

    python -m tests.chaos.server MODE SIZE ADDRESS DURABILITY STATE_DIR SHM_DIR WORKERS PARTITIONS
        LEASE_S

With the durability "off" it has no state directory.

It lives until its standard input ends, or SIGTERM comes, after which trainers may commit for a
moment.  It ends with 3 when the server has failed, so that whoever looks after it starts it again.
"""

from __future__ import annotations

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
    """Whether nobody holds the other end of the standard input any more."""
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    try:
        serve()
    except Stopped:
        print("stopped", flush=True)


def serve() -> None:
    mode, size, address, durability, directory, memory, workers, partitions, lease_s = sys.argv[1:]
    with hs.run(
        pipeline(mode, int(size)),
        bind=address,
        state_dir=None if durability == "off" else directory,
        durability=durability,
        shm_dir=memory,
        partitions=int(partitions),
        workers=int(workers),
        lease_ttl_s=float(lease_s),
    ) as server:
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
