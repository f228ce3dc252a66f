"""Commands ask a server by HTTP; an error is one line, and no answer moves a cursor."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_proto.errors import ConnectionLost, ServerError
from headrace_proto.token import SNAPSHOT
from headrace_server.watch.http_client import HttpClient, shown, snapshot_of_all
from tests.patience import PATIENCE_S

from ..cli.served import Served, served, stranger

__all__ = ["served"]


def test_no_server_is_told_with_what_to_do():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # which nobody else gets meanwhile
        with pytest.raises(
            ConnectionLost, match=r"no server answers at .*: Connection refused\..*--http HOST"
        ):
            HttpClient(f"http://127.0.0.1:{port}").get("/status.json")


def test_a_proxy_of_the_environment_is_not_asked(served: Served, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert HttpClient(served.address).get("/status.json")["state"] == "serving"


@pytest.fixture
def other() -> Iterator[tuple[str, list[bytes]]]:
    """A port at which something else answers, with a redirection."""
    heard: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            heard.append(connection.recv(65536))
            connection.sendall(
                b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n"
                b"Content-Length: 5\r\n\r\nhello"
            )

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
    listening.close()
    thread.join(PATIENCE_S)


def test_a_redirection_is_not_followed(other: tuple[str, list[bytes]]):
    address, heard = other
    with pytest.raises(ServerError, match="answers 302"):
        HttpClient(address).get("/status.json")
    assert heard and b"uthorization" not in heard[0]


def test_what_a_terminal_would_obey_is_shown_and_not_done():
    assert shown("a\x1b[2Jb\x07\x9b\r\u202ec\nd é☃") == "a\\x1b[2Jb\\x07\\x9b\\r\\u202ec\nd é☃"


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (404, "text/html", b"<!DOCTYPE HTML>\n<html>not here</html>"),
        (501, "text/html;charset=utf-8", b"<p>Unsupported method"),
        (200, "text/html", b"<html>hello</html>"),
        (200, "application/json", b"[1, 2]"),
        (200, "application/json", b'{"status": "up"}'),
        (200, "application/json", b"[" * 100_000),
    ],
)
def test_another_kind_of_server_is_told_in_a_line(status: int, kind: str, body: bytes):
    """A command must not show the page of a stranger."""
    with stranger(status, kind, body) as url, pytest.raises(ServerError) as caught:
        HttpClient(url).status()
    said = f"the peer at {url} (which answers {status}) is no headrace server, or not of this "
    assert str(caught.value).startswith(said)


def test_all_servers_keep_a_snapshot_under_one_name_before_any_settles_it():
    """They do so at the same time."""
    asked: list[Any] = []
    together = threading.Barrier(2)

    def taking(server: int) -> Any:
        def snapshot(feed: str, timeout_s: float, name: str = "", whole: bool = False) -> Any:
            if name:
                together.wait(PATIENCE_S)
            asked.append((server, name, whole))
            return {"snapshot": name}

        return snapshot

    token = snapshot_of_all([taking(0), taking(1)], "f", 1.0)
    name = token["snapshot"]
    assert SNAPSHOT.fullmatch(name)
    assert sorted(asked[:2]) == [(0, name, False), (1, name, False)]
    assert sorted(asked[2:]) == [(0, name, True), (1, name, True)]
    asked.clear()
    snapshot_of_all([taking(0)], "f", 1.0)
    assert asked == [(0, "", False)]


@pytest.mark.parametrize("query", ["name=../x", "whole=1", "name=20260102T030405Z-01&whole=1"])
def test_a_snapshot_is_named_as_snapshots_are(served: Served, query: str):
    with pytest.raises(ValueError, match="name is the name of a snapshot"):
        HttpClient(served.address).post(f"/snapshot?{query}")
    assert not served.asked
