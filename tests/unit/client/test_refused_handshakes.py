"""A trainer that is not let in learns why; one that was let in does not look."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from headrace.credentials import load_keys
from headrace.refused_handshakes import Handshakes
from headrace_proto.errors import NotAllowed
from headrace_server.cli.keygen import make_pair
from tests.patience import PATIENCE_S


class Knocking:
    """A trainer's socket and its handshakes, in this thread."""

    def __init__(self, port: int, keys: Path | None) -> None:
        self.address = f"tcp://127.0.0.1:{port}"
        self.context: Any = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        found = None if keys is None else load_keys(keys)
        if found is not None:
            found.lock(self.socket)
        self.handshakes = Handshakes(self.context, self.socket, self.address, found)
        self.socket.connect(self.address)

    def fault(self, ahead_s: float = 0.0, known: bool = False) -> NotAllowed:
        """The fault that comes, with a clock that is ahead."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = self.handshakes.fault(time.monotonic() + ahead_s, known)
            if found is not None:
                return found
            self.socket.poll(10)
        raise AssertionError("no fault is found")

    def looks(self, until: Callable[[Handshakes], object], known: bool = False) -> None:
        """Look, and find no fault, until the handshakes are so."""
        deadline = time.monotonic() + PATIENCE_S
        while not until(self.handshakes):
            assert time.monotonic() < deadline
            assert self.handshakes.fault(1.0, known) is None
            self.socket.poll(10)

    def close(self) -> None:
        self.handshakes.close()
        self.socket.close()
        self.context.term()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_pair(tmp_path, None)
    make_pair(tmp_path, "alice")
    return tmp_path


@pytest.fixture
def knock(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Knocking] = []

    def knock(port: int, keys: Path | None) -> Knocking:
        made.append(Knocking(port, keys))
        return made[-1]

    yield knock
    for one in made:
        one.close()


@contextlib.contextmanager
def plain(address: str) -> Iterator[int]:
    """Listen as a server without keys does; give the port."""
    context: Any = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.bind(address)
    yield int(router.last_endpoint.decode().rpartition(":")[2].rstrip("\0"))
    router.close()
    context.term()


@pytest.fixture
def plain_server() -> Iterator[int]:
    with plain("tcp://127.0.0.1:*") as port:
        yield port


@pytest.fixture
def locked_server(keys: Path) -> Iterator[int]:
    """A server without known trainers: its context answers each question with no."""
    context: Any = zmq.Context()
    zap = context.socket(zmq.REP)
    zap.bind("inproc://zeromq.zap.01")

    def answer() -> None:
        while True:
            try:
                _, request, *_ = zap.recv_multipart()
                zap.send_multipart([b"1.0", request, b"400", b"no", b"", b""])
            except zmq.ZMQError:
                zap.close(0)
                return

    thread = threading.Thread(target=answer)
    thread.start()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.curve_server = True
    secret = (keys / "server.secret").read_text().split("curve-secret: ")[1].strip()
    router.curve_secretkey = secret.encode()
    yield router.bind_to_random_port("tcp://127.0.0.1")
    router.close()
    context.term()
    thread.join()


@contextlib.contextmanager
def breaking() -> Iterator[int]:
    """Take every connection at a port and break it off, as a server with other keys does."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            taken, _ = listener.accept()
            taken.close()

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    yield port
    stopping.set()
    socket.create_connection(("127.0.0.1", port)).close()
    thread.join()
    listener.close()


@pytest.fixture
def breaking_server() -> Iterator[int]:
    with breaking() as port:
        yield port


def test_the_error_of_an_unknown_key_names_the_file_to_add(knock, locked_server, keys):
    text = str(knock(locked_server, keys).fault())
    assert load_keys(keys).public in text and "put alice.public into trainers/" in text


def test_the_error_of_a_trainer_without_keys_says_that_the_server_requires_them(
    knock, locked_server
):
    text = str(knock(locked_server, None).fault())
    assert "asks for keys" in text and "HEADRACE_KEYS" in text and "headrace keygen" in text


def test_the_error_of_a_trainer_with_keys_says_that_the_server_has_none(knock, plain_server, keys):
    text = str(knock(plain_server, keys).fault())
    assert "has no keys" in text and f"keys={str(keys)!r}" in text


def test_connections_that_are_broken_off_are_a_fault_only_after_some_seconds(
    knock, breaking_server, keys
):
    knocking = knock(breaking_server, keys)
    knocking.looks(lambda handshakes: handshakes.hint)
    assert "server.public of keys=" in knocking.handshakes.hint
    assert "server.public" in str(knocking.fault(ahead_s=1000))


def test_a_trainer_that_was_admitted_before_or_has_no_keys_waits_for_the_server(
    knock, breaking_server, keys
):
    """It may be a proxy before a server that starts."""
    for given, known in ((keys, True), (None, False)):
        knocking = knock(breaking_server, given)
        knocking.looks(lambda handshakes: handshakes.hint, known)
        assert "breaks connections off" in knocking.handshakes.hint
        assert knocking.handshakes.fault(1e6, known) is None


def test_a_handshake_that_succeeds_clears_what_was_before(knock):
    with breaking() as port:
        knocking = knock(port, None)
        knocking.looks(lambda handshakes: handshakes.hint)
    with plain(f"tcp://127.0.0.1:{port}"):
        knocking.looks(lambda handshakes: not handshakes.hint)
