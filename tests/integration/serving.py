"""A server with one worker, and a trainer of it.

A test of several workers calls ``hs.run`` itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

import headrace
import headrace_server as hs
from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Bye, Hello, Pulse, Welcome
from headrace_server.journal.state_directory import term_by_clock
from tests.located import workers_at
from tests.patience import PATIENCE_S, eventually

__all__ = [
    "arrived",
    "await_next_term",
    "connect",
    "dataset_of",
    "drained",
    "fed",
    "greeted",
    "in_segments",
    "kill_all",
    "kill_worker",
    "number_of",
    "pid_of",
    "serving",
    "trainers_of",
]


def serving(pipelines: Any, **options: Any) -> hs.Server:
    """Start a server with one worker."""
    return hs.run(pipelines, **options)


def connect(server: hs.Server, **options: Any) -> headrace.Feed:
    """Connect to a server, with a timeout that a busy machine keeps."""
    return headrace.connect(server.address, **{"timeout": PATIENCE_S, **options})


def in_segments(source: hs.Pipeline, **options: Any) -> hs.Pipeline:
    """Cut the sequences ``x`` of examples into segments of two steps, with a state ``s``."""
    given: dict[str, Any] = {
        "input_key": "key",
        "input_sequences": ["x"],
        "input_context": [],
        "initial_states": {"s": hs.zeros((), "float32")},
        "num_unroll": 2,
        "batch_size": 2,
    }
    return source.batch_sequences_with_states(**{**given, **options})


@contextlib.contextmanager
def fed(
    pipeline: Any, framework: str = "numpy", partitions: int | None = None, **options: Any
) -> Iterator[headrace.Feed]:
    """Start a server, and yield a feed of it."""
    with serving(pipeline, partitions=partitions) as server:
        with connect(server, framework=framework, **options) as feed:
            yield feed


def drained(server: hs.Server, feed: str = "default") -> list[headrace.Batch]:
    """Return all batches of a feed, or raise its error."""
    with connect(server, feed=feed) as batches:
        return list(batches)


def dataset_of(server: hs.Server, feed: str, **options: Any) -> Any:
    """Return a dataset of torch of a feed."""
    from headrace.torch import FeedDataset

    return FeedDataset(server.address, feed=feed, timeout=PATIENCE_S, **options)


def pid_of(server: hs.Server, name: str) -> int:
    """Return the number of a server's process of this name, once there is one."""
    return eventually(lambda: server.pids.get(name, 0))


def kill_worker(server: hs.Server, worker: int = 0, life: int = 0) -> None:
    """Kill a life of a worker, once it has started.

    A test that kills one again counts its lives: for a while after its death a life has its number
    still, or there is none.
    """
    os.kill(pid_of(server, f"worker-{worker}-{life}"), signal.SIGKILL)


def kill_all(server: hs.Server) -> None:
    """Kill all processes of a server; some may end themselves when others are dead."""
    for pid in server.pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def trainers_of(server: hs.Server, feed: str = "default") -> list[dict[str, Any]]:
    """Return the trainers that a server's status lists."""
    trainers: list[dict[str, Any]] = server.stats()[feed]["trainers"]
    return trainers


def number_of(server: hs.Server) -> int:
    """Return the number by which a server knows its only trainer."""
    (trainer,) = trainers_of(server)
    number: int = trainer["trainer"]
    return number


def arrived(server: hs.Server, feed: headrace.Feed, batches: int) -> None:
    """Wait until the server's only trainer has this many batches in hand and ahead."""
    _ = feed.progress  # answered once all commits are
    eventually(lambda: trainers_of(server)[0]["leases"] >= batches)
    feed.stats()  # its answer comes after the batches


def await_next_term(state: Path) -> None:
    """Return when the clock gives another term than that of the last start of a directory."""
    (_, *_, last), _ = json.loads((state / "terms.json").read_text())
    eventually(lambda: term_by_clock() > last)


@contextlib.contextmanager
def greeted(server: hs.Server, **facts: Any) -> Iterator[Welcome]:
    """Join worker 0 as a client that takes no batch, by ZeroMQ; yield the answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger, peer.rcvtimeo = 1000, int(1000 * PATIENCE_S)
        peer.connect(workers_at(server.address)[0])
        peer.send(FROM_TRAINER.encode(Hello(limits.PROTOCOL, "t", "", os.urandom(8), **facts)))
        welcome = FROM_SERVER.decode(peer.recv())
        while isinstance(welcome, Pulse):  # the feed is not open yet
            welcome = FROM_SERVER.decode(peer.recv())
        assert isinstance(welcome, Welcome), welcome
        yield welcome
        peer.send(FROM_TRAINER.encode(Bye(welcome.session)))
