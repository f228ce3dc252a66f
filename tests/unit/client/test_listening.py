"""The error of a server that does not answer says what listens at its address."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from headrace.listening import listening


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


def test_a_port_of_http_is_named() -> None:
    with http_server() as port:
        assert "HTTP is served there" in listening(f"tcp://127.0.0.1:{port}")


def test_a_port_of_zeromq_and_one_that_says_nothing_give_no_hint() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        assert listening(f"tcp://127.0.0.1:{port}") == ""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert listening(f"tcp://127.0.0.1:{silent.getsockname()[1]}") == ""


def test_another_protocol_is_no_server_of_headrace() -> None:
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
def test_an_address_at_which_nothing_is_found(address: str, hint: str) -> None:
    assert listening(address) == hint


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
