"""The error of a server that does not answer says what listens at its address."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from headrace import wait_errors as module
from headrace.wait_errors import listening
from tests.patience import PATIENCE_S


@contextmanager
def http_server() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a look take as long as tests wait."""
    monkeypatch.setattr(module, "_LOOK_S", PATIENCE_S)
    monkeypatch.setattr(module, "_MOST_S", 2 * PATIENCE_S)


class NoGreeting(socket.socket):
    """A connection on which no greeting comes: the wait for one is over at once."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        if size == 1:
            raise TimeoutError
        return super().recv(size, flags)


def test_a_port_of_http_is_named(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    connected = socket.create_connection

    def without_greeting(address: tuple[str, int], timeout: float) -> NoGreeting:
        connection = NoGreeting(fileno=connected(address, timeout).detach())
        connection.settimeout(timeout)
        return connection

    monkeypatch.setattr(socket, "create_connection", without_greeting)
    with http_server() as port:
        assert "HTTP is served there" in listening(f"tcp://127.0.0.1:{port}")


def test_a_port_of_zeromq_and_one_that_says_nothing_give_no_hint() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        assert listening(f"tcp://127.0.0.1:{port}") == ""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert listening(f"tcp://127.0.0.1:{silent.getsockname()[1]}") == ""


def test_another_protocol_is_no_server_of_headrace(patient: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example.org ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        hint = listening(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert hint == ": what listens there is no server of headrace"


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("tcp://127.0.0.1:1", ": nothing listens there"),
        ("ipc:///nowhere/socket", ": there is no such socket"),
        ("ipc://@abstract", ""),
    ],
)
def test_an_address_at_which_nothing_is_found(address: str, hint: str, patient: None) -> None:
    assert listening(address) == hint


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    assert listening("tcp://feedre:5557") == ": no host 'feedre' is known here"


def test_a_name_server_that_does_not_answer_delays_the_error_by_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = threading.Event()

    def unanswered(*_: object) -> None:
        answered.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", unanswered)
    assert listening("tcp://feeder:5557") == ""
    answered.set()
