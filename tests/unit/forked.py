"""A process that prints its input, and ends with code 7."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys


def main() -> None:
    json.dump(
        {
            "parent": os.getppid(),
            "read": sys.stdin.read(),
            "arguments": sys.argv[1:],
            "environment": dict(os.environ),
            "paths": sys.path[:2],
            "cwd": os.getcwd(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "blocked": signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "descriptors": len(os.listdir("/proc/self/fd")),
        },
        sys.stdout,
    )
    print("an error", file=sys.stderr)
    sys.exit(7)


if __name__ == "__main__":
    main()
