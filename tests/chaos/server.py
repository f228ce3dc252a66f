"""The server under test: one feed, a fixed address, a state directory.

    python -m tests.chaos.server MODE SIZE ADDRESS STATE_DIR WORKERS LEASE_S

It lives until its standard input ends, and ends with 3 when the server has failed, so that whoever
looks after it starts it again.
"""

from __future__ import annotations

import select
import sys

import headrace_server as hs

from .feeds import PARTITIONS, pipeline

_ASK_S = 0.2


def ended(within_s: float = 0) -> bool:
    """Whether nobody holds the other end of the standard input any more."""
    return bool(select.select([sys.stdin], [], [], within_s)[0])


def main() -> None:
    mode, size, address, state_dir, workers, lease_s = sys.argv[1:]
    with hs.run(
        pipeline(mode, int(size)),
        bind=address,
        state_dir=state_dir,
        partitions=PARTITIONS,
        workers=int(workers),
        lease_ttl_s=float(lease_s),
    ) as server:
        print("up", flush=True)
        try:
            while not server.wait(_ASK_S) and not ended():
                pass
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
