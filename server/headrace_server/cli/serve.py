"""``headrace serve``: a server for pipelines, until a signal ends it.

first SIGTERM or Ctrl-C    hand out nothing more, wait for the commits of what is out, end
another one                end at once

``headrace drain`` is as good as the first.  With a state directory both mean that the server will
be back: its trainers wait for the next one.
"""

from __future__ import annotations

import logging
import signal
import threading
from argparse import Namespace
from pathlib import Path
from types import FrameType

from headrace_proto.clock import Deadline
from headrace_proto.token import Token

from ..server import Server, run
from ..shell.restoring import Resumption, resumption
from . import exits
from .options import Option
from .pipelines import PIPELINES, load
from .settings import CONFIG
from .table import Command

__all__ = ["COMMAND", "Signals", "until_stopped"]

logger = logging.getLogger("headrace.server")

KEYS = Option(
    "keys",
    "path",
    "keys of this server and of the trainers that it lets in, as headrace keygen makes them",
    told="no keys: everybody who reaches it is let in",
)
INSECURE = Option(
    "insecure",
    "flag",
    "bind to addresses that other machines can reach without keys",
    default=False,
)
_OPTIONS = (
    PIPELINES,
    CONFIG,
    Option(
        "bind",
        "text",
        "where trainers connect: tcp:// or ipc://, port * is a free one; may be repeated",
        default=("tcp://127.0.0.1:5557",),
        metavar="ADDRESS",
        many=True,
    ),
    KEYS,
    INSECURE,
    Option("workers", "integer", "worker processes", default=1),
    Option(
        "partitions",
        "integer",
        "slices of each feed; part of the run, not of the machine",
        told="as many as workers; with a state, as many as that has",
    ),
    Option(
        "state_dir",
        "path",
        "where positions, commits and states outlive the server; indexes of record files, too",
        told="memory only",
    ),
    Option(
        "durability",
        "text",
        "what a commit outlives; off keeps only indexes in the state directory",
        told="power, where there is a state directory",
        choices=("power", "process", "off"),
    ),
    Option(
        "allow_config_change",
        "flag",
        "go on from the states of a pipeline or of files that have changed since",
        default=False,
    ),
    Option(
        "resume",
        "text",
        "go on from a snapshot: its token, or a file that holds it; a state directory that was "
        "taken back to it before goes on where it is; may be repeated",
        metavar="TOKEN",
        many=True,
    ),
    Option(
        "snapshots",
        "text",
        "where snapshots are copied to, and found when the state directory is another",
        metavar="URL",
        told="the state directory alone",
    ),
    Option("keep_snapshots", "integer", "how many stay of each feed", told="all"),
    Option(
        "max_state_bytes",
        "integer",
        "states of one example that are kept at the server",
        default=1024**2,
    ),
    Option(
        "lease_ttl",
        "seconds",
        "a trainer silent for so long loses what it holds",
        default=30.0,
        argument="lease_ttl_s",
    ),
    Option("max_trainers", "integer", "trainers at once", default=4096),
    Option(
        "max_credits",
        "integer",
        "batches of one worker that a trainer may hold without a commit",
        default=64,
    ),
    Option(
        "max_messages_per_s",
        "integer",
        "messages of a trainer to one worker in a second, beyond which it is refused",
        default=50_000,
    ),
    Option("slab_bytes", "integer", "shared memory of each worker", told="fits"),
    Option("shm_dir", "path", "where it lies", told="/dev/shm"),
    Option(
        "start_timeout",
        "seconds",
        "how long sources may take to open, or an index to grow no further",
        default=120.0,
        argument="start_timeout_s",
    ),
    Option(
        "worker_timeout",
        "seconds",
        "a worker without progress for so long is ended and replaced; at least 2",
        default=60.0,
        argument="worker_timeout_s",
    ),
    Option(
        "worker_memory_bytes",
        "integer",
        "memory of each worker beside shared memory and mapped files; at least 256 MiB",
        told="any",
    ),
    Option(
        "record",
        "text",
        "what of every batch is recorded in the state directory: its rows and whom it went to, "
        "the states of segments too, or nothing",
        told="rows, where there is a state directory",
        choices=("rows", "states", "off"),
    ),
    Option("record_bytes", "integer", "of that, for each feed; the oldest goes", told="268435456"),
    Option("drain_timeout", "seconds", "how long a signal waits for commits", default=20.0),
    Option(
        "http",
        "text",
        "serve metrics, health and a page here; port 0 is a free one",
        told="not at all",
        metavar="HOST:PORT",
    ),
    Option(
        "http_token_file",
        "path",
        "only who has the token in it may drain the server, or have a snapshot taken, by HTTP",
        told="who is on this machine",
        metavar="FILE",
    ),
    Option("exit_when_done", "flag", "end when every feed has ended or failed", default=False),
)


def _serve(options: Namespace) -> int:
    stop = Signals()
    server = run(
        load(options.pipelines),
        workers=options.workers,
        partitions=options.partitions,
        bind=list(options.bind),
        keys=options.keys,
        insecure=options.insecure,
        state_dir=options.state_dir,
        durability=options.durability,
        allow_config_change=options.allow_config_change,
        resume=_tokens(options.resume, options.state_dir),
        snapshots=options.snapshots,
        keep_snapshots=options.keep_snapshots,
        max_state_bytes=options.max_state_bytes,
        lease_ttl_s=options.lease_ttl,
        max_trainers=options.max_trainers,
        max_credits=options.max_credits,
        max_messages_per_s=options.max_messages_per_s,
        slab_bytes=options.slab_bytes,
        shm_dir=options.shm_dir,
        start_timeout_s=options.start_timeout,
        worker_timeout_s=options.worker_timeout,
        worker_memory_bytes=options.worker_memory_bytes,
        record=options.record,
        record_bytes=options.record_bytes,
        http=options.http,
        http_token_file=options.http_token_file,
    )
    with server:
        stop.started = True
        print(f"headrace serves at {' '.join(server.addresses)}", flush=True)
        if server.http_address is not None:
            print(f"and shows itself at {server.http_address}", flush=True)
        return until_stopped(server, stop, options)


def _tokens(given: tuple[str, ...] | None, state_dir: str | None) -> list[Token] | None:
    """Tokens of snapshots that are still to be gone on from.

    Whoever starts a server again with the same command means it to go on, not back.
    """
    if not given:
        return None
    tokens = []
    for text in given:
        path = Path(text)
        try:
            content = text if text.lstrip().startswith("{") else path.read_text()
        except OSError as error:
            raise ValueError(
                f"--resume {text!r:.120} is neither a token (JSON) nor a file that can be read: "
                f"{error.strerror}"
            ) from None
        token = Token.from_plain("resume", content)
        was = Resumption() if not state_dir else resumption(Path(state_dir), token.feed)
        if token.snapshot in (was.snapshot, was.before):
            logger.warning(
                "feed %r was taken back to snapshot %s before, and goes on from where it is; its "
                "trainers go back by connect(resume=…)",
                *(token.feed, token.snapshot),
            )
        else:
            tokens.append(token)
    return tokens or None


def until_stopped(server: Server, stop: Signals, options: Namespace) -> int:
    linger: Deadline | None = None  # a feed that failed tells why to trainers that come late
    while not stop.first.is_set() and not server.draining:
        if not server.wait(0):  # or a feed was started again
            linger = None
        elif linger is None:
            linger = Deadline(options.drain_timeout if server.failed_feeds() else 0.0)
        if linger is not None and options.exit_when_done and not linger.left_s:
            break
        server.check()
        stop.first.wait(0.2)
    if stop.first.is_set() or server.draining:
        waiter = threading.Thread(target=server.drain, args=(options.drain_timeout,), daemon=True)
        waiter.start()
        another = stop.second if stop.first.is_set() else stop.first
        while waiter.is_alive() and not another.is_set():
            waiter.join(0.1)
    return exits.FAILED if server.failed_feeds() else exits.WELL


class Signals:
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


COMMAND = Command(
    "Serve pipelines until SIGTERM or Ctrl-C, then hand out nothing more, wait for the commits of "
    "what is out, and end.  A second signal ends at once.",
    _OPTIONS,
    _serve,
    configured=True,
)
