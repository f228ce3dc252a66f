"""A peer that sends anything, and a trainer that it must not disturb."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import zmq

import headrace
import headrace_server as hs
from headrace_proto.credentials import load_keys
from headrace_proto.messages import FROM_SERVER
from tests.patience import PATIENCE_S


@contextlib.contextmanager
def honest_trainer(
    server: hs.Server, rows: int, keys: str | None = None
) -> Iterator[headrace.Feed]:
    """Train slowly while the block lasts, then train the rest; check that each row came once."""
    seen: list[int] = []
    rushing = threading.Event()
    failures: list[BaseException] = []
    with headrace.connect(server.address, keys=keys, timeout=PATIENCE_S) as feed:

        def run() -> None:
            try:
                for batch in feed:
                    seen.extend(batch["i"].tolist())
                    rushing.wait(0.01)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield feed
        finally:
            rushing.set()
            thread.join(PATIENCE_S)
    assert not failures
    assert sorted(seen) == list(range(rows))


@contextlib.contextmanager
def dealer(address: str, keys: str | None = None, name: bytes = b"") -> Iterator[Any]:
    """A peer that sends arbitrary messages, with keys or without."""
    context: Any = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    if keys is not None:
        load_keys(keys).lock(peer)
    if name:
        peer.setsockopt(zmq.ROUTING_ID, name)
    peer.connect(address)
    try:
        yield peer
    finally:
        peer.close()
        context.term()


def answer(peer: Any) -> Any:
    assert peer.poll(1000 * int(PATIENCE_S)), "no answer"
    return FROM_SERVER.decode(peer.recv_multipart()[0])
