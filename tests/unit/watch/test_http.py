"""HTTP over real sockets: good requests are answered, hostile ones cut off, others go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator

import pytest

from headrace_server.watch import http as module
from headrace_server.watch import metrics
from headrace_server.watch.http import HttpService
from headrace_server.watch.watch import Watch
from tests.patience import PATIENCE_S

from .watched import Watched


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpService]:
    """One that cuts nobody off who is only slow."""
    monkeypatch.setattr(module, "_PEER_S", PATIENCE_S)
    monkeypatch.setattr(module, "_TURN_S", PATIENCE_S)
    watch = Watch()
    watch.begin(Watched())
    one = HttpService(("127.0.0.1", 0), watch)
    yield one
    one.close()
    watch.end()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, service: HttpService) -> HttpService:
    monkeypatch.setattr(module, "_PEER_S", 1.0)
    monkeypatch.setattr(module, "_TURN_S", 0.3)
    return service


def place(service: HttpService) -> tuple[str, int]:
    return "127.0.0.1", int(service.address.rpartition(":")[2])


def asked(service: HttpService, path: str = "/healthz", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*place(service), timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def sent(service: HttpService, data: bytes) -> bytes:
    """All that is answered to some bytes, until the connection is closed."""
    with socket.create_connection(place(service), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://127.0.0.1/ HTTP/1.1\r\n\r\n",
        b"GET /\x00\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
        b"A" * 40_000,
    ],
    ids=["empty", "no-target", "version", "absolute", "bytes", "tls", "headers", "long"],
)
def test_nonsense_is_answered_so_or_cut_off(service, data):
    answer = sent(service, data)
    assert answer == b"" or re.match(rb"HTTP/1\.1 (4|505 )", answer)
    assert asked(service)[0] == 200


def test_who_sends_a_byte_now_and_then_is_cut_off_as_well(hasty):
    begun = time.monotonic()
    with socket.create_connection(place(hasty), timeout=PATIENCE_S) as connection:
        try:
            for _ in range(2000):
                connection.sendall(b"G")
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(100)
                    break
        except OSError:
            pass
    assert time.monotonic() - begun < PATIENCE_S / 2


def test_slow_peers_keep_nobody_out_while_they_last(service, monkeypatch):
    """Each may hold a thread for ten minutes, and there are more of them than threads."""
    monkeypatch.setattr(module, "_PEER_S", 600.0)
    monkeypatch.setattr(module, "_TURN_S", 20.0)
    slow = [socket.create_connection(place(service), timeout=PATIENCE_S) for _ in range(24)]
    try:
        for connection in slow:
            with contextlib.suppress(OSError):  # it was cut off
                connection.sendall(b"G")
        for _ in range(3):
            assert asked(service)[0] == 200
        assert slow[0].recv(1) == b""  # the slowest was the first to go
    finally:
        for connection in slow:
            connection.close()


def test_a_peer_that_goes_on_after_its_answer_is_cut_off(service, monkeypatch):
    monkeypatch.setattr(module, "_PEER_S", 0.3)
    with socket.create_connection(place(service), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                connection.sendall(b"G")
                time.sleep(0.02)
            raise AssertionError("it was not cut off")


def test_what_can_not_be_answered_is_an_error_and_not_the_end(service, monkeypatch, caplog):
    def broken(*of: object, **named: object) -> str:
        raise RuntimeError("a fault")

    monkeypatch.setattr(metrics, "exposition", broken)
    status, body = asked(service, "/metrics")
    assert status == 500 and b"a fault" not in body and "a fault" in caplog.text
    assert asked(service)[0] == 200


def test_a_close_ends_all_threads_also_amid_a_request(service):
    with socket.create_connection(place(service), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET /")
        begun = time.monotonic()
        service.close()
        assert time.monotonic() - begun < PATIENCE_S / 2
    service.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(place(service), timeout=5)


@pytest.mark.parametrize(
    "body",
    ["Content-Length: 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
)
def test_a_request_to_change_something_or_with_a_body_changes_nothing(service, body):
    head = "POST /drain HTTP/1.1\r\nHost: localhost\r\n"
    answer = sent(service, f"{head}{body}".encode())
    assert answer.startswith(b"HTTP/1.1 400 ") and b"POST /drain takes no body" in answer
    answer = sent(service, f"{head}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 405 ") and b"this port only shows" in answer
    assert json.loads(asked(service, "/status.json")[1])["draining"] is False
