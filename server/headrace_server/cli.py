"""The command ``headrace``.

Exit codes: 0 well; 1 the server or a feed failed; 2 the command line or the declaration is wrong.
A user's mistake is one readable paragraph, never a traceback.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from headrace_proto import __version__
from headrace_proto.errors import HeadraceError

from .pipeline import Pipeline
from .pipeline.naming import resolve
from .run import Server, run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        return int(options.run(options))
    except (HeadraceError, ValueError, TypeError, ImportError, OSError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1 if isinstance(error, HeadraceError) else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description="A feeding server for training on long sequences."
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve one or more pipelines until stopped",
        description="Serve pipelines until SIGTERM or Ctrl-C, then hand out nothing more, wait for "
        "the commits of what is out, and end.  A second signal ends at once.",
    )
    serve.add_argument(
        "pipelines",
        nargs="+",
        metavar="FILE.py:NAME",
        help="a pipeline, a function that returns one (the feed gets its name), or a dict of "
        "pipelines by feed name; package.module:NAME works too",
    )
    serve.add_argument(
        "--bind",
        action="append",
        metavar="ADDRESS",
        help="where trainers connect; may be repeated (default: tcp://127.0.0.1:5557)",
    )
    serve.add_argument("--workers", type=int, default=1, help="worker processes (default: 1)")
    serve.add_argument(
        "--partitions",
        type=int,
        help="slices of each feed; part of the run, not of the machine (default: 1)",
    )
    serve.add_argument(
        "--state-dir",
        metavar="DIR",
        help="where positions, commits and states outlive the server (default: memory only)",
    )
    serve.add_argument(
        "--durability",
        choices=("power", "process", "off"),
        default="power",
        help="what a commit outlives; off keeps only indexes in the state directory",
    )
    serve.add_argument(
        "--allow-config-change",
        action="store_true",
        help="go on from the states of a pipeline or of files that have changed since",
    )
    serve.add_argument(
        "--lease-ttl",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a trainer silent for so long loses what it holds (default: 30)",
    )
    serve.add_argument(
        "--slab-bytes", type=int, metavar="N", help="shared memory of each worker (default: fits)"
    )
    serve.add_argument("--shm-dir", metavar="DIR", help="where it lies (default: /dev/shm)")
    serve.add_argument(
        "--start-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long sources may take to open and be indexed (default: 120)",
    )
    serve.add_argument(
        "--worker-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a worker without progress for so long is replaced (default: 60)",
    )
    serve.add_argument(
        "--worker-memory-bytes",
        type=int,
        metavar="N",
        help="memory of each worker beside shared memory and mapped files (default: any)",
    )
    serve.add_argument(
        "--drain-timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long SIGTERM waits for commits (default: 20)",
    )
    serve.add_argument(
        "--exit-when-done", action="store_true", help="end when every feed has ended"
    )
    serve.set_defaults(run=_serve)
    return parser


def _serve(options: argparse.Namespace) -> int:
    stop = _Signals()
    server = run(
        _load(options.pipelines),
        workers=options.workers,
        partitions=options.partitions,
        bind=options.bind or "tcp://127.0.0.1:5557",
        state_dir=options.state_dir,
        durability=options.durability,
        allow_config_change=options.allow_config_change,
        lease_ttl_s=options.lease_ttl,
        slab_bytes=options.slab_bytes,
        shm_dir=options.shm_dir,
        start_timeout_s=options.start_timeout,
        worker_timeout_s=options.worker_timeout,
        worker_memory_bytes=options.worker_memory_bytes,
    )
    with server:
        stop.started = True
        print(f"headrace serves at {' '.join(server.addresses)}", flush=True)
        return _until_stopped(server, stop, options)


def _until_stopped(server: Server, stop: _Signals, options: argparse.Namespace) -> int:
    done = False
    linger_until = 0.0  # a feed that failed goes on telling why to trainers that come late
    while not stop.first.is_set():
        if not done and server.wait(0):
            done = True
            linger_s = options.drain_timeout if server.failed_feeds() else 0.0
            linger_until = time.monotonic() + linger_s
        if done and options.exit_when_done and time.monotonic() >= linger_until:
            break
        server.check()
        stop.first.wait(0.2)
    if stop.first.is_set():
        waiter = threading.Thread(target=server.drain, args=(options.drain_timeout,), daemon=True)
        waiter.start()
        while waiter.is_alive() and not stop.second.is_set():
            waiter.join(0.1)
    return 1 if server.failed_feeds() else 0


class _Signals:
    """SIGTERM and SIGINT, counted."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.second = threading.Event()
        self.started = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.started:  # nothing is out yet: the start is given up, and cleaned up after
            raise SystemExit(0)
        (self.second if self.first.is_set() else self.first).set()


def _load(targets: Sequence[str]) -> dict[str, Pipeline]:
    """The pipelines that the command line names."""
    if os.getcwd() not in map(os.path.abspath, sys.path):
        sys.path.insert(0, os.getcwd())  # an installed script does not see modules that lie here
    pipelines: dict[str, Pipeline] = {}
    for target in targets:
        value: Any = resolve(target)
        name = target.rpartition(":")[2].rpartition(".")[2]
        if callable(value) and not isinstance(value, Pipeline):
            value = _called(target, value)
        found = value if isinstance(value, Mapping) else {name: value}
        for feed, pipeline in found.items():
            if not isinstance(pipeline, Pipeline):
                raise TypeError(f"{target} gives a {type(pipeline).__name__}, not a pipeline")
            if feed in pipelines:
                raise ValueError(f"two pipelines are called {feed!r}: name them in a dict")
            pipelines[feed] = pipeline
    return pipelines


def _called(target: str, function: Callable[[], Any]) -> Any:
    """What a user's function returns; where it raises, the place stands in for a traceback."""
    try:
        return function()
    except HeadraceError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ImportError(
            f"{target} raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
