"""Where HTTP is to be served is checked before anything is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.watch.http import HttpOptions, HttpService


@pytest.mark.parametrize(
    ("http", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("[::1]:0", "::1", 0), ("0.0.0.0:1", "0.0.0.0", 1)],
)
def test_an_address_is_host_and_port(http: str, host: str, port: int):
    found = HttpOptions.of(http, None)
    assert found == HttpOptions(host, port, None)


@pytest.mark.parametrize(
    "http",
    ["", "8080", ":8080", "localhost", "localhost:", "h:x", "h:65536", "::1:80", "h:-1", "h:²"],
)
def test_what_is_none_is_refused_with_an_example(http: str):
    with pytest.raises(ValueError, match=r"is not HOST:PORT such as 127\.0\.0\.1:8080"):
        HttpOptions.of(http, None)


def test_a_token_is_one_line_that_is_long_enough(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    assert HttpOptions.of("h:1", file) == HttpOptions("h", 1, "0123456789abcdef")
    for wrong in ("", "short", "0123456789 abcdef", "0123456789abcdeé", "\0" * 16):
        file.write_text(wrong)
        with pytest.raises(
            ValueError, match="holds no token: one line of 16 characters or more"
        ) as error:
            HttpOptions.of("h:1", file)
        assert not wrong or wrong not in str(error.value)
    file.write_bytes(b"\xff0123456789abcdef")
    with pytest.raises(ValueError, match="token' holds no token"):
        HttpOptions.of("h:1", file)


def test_an_address_that_is_taken_is_told_by_its_name():
    one = HttpService(HttpOptions("127.0.0.1", 0, None))
    try:
        port = int(one.address.rpartition(":")[2])
        with pytest.raises(ServerError, match=rf"http='127\.0\.0\.1:{port}': [\w ]*in use$"):
            HttpService(HttpOptions("127.0.0.1", port, None))
    finally:
        one.close()
    with pytest.raises(ServerError, match=r"http='no\.such\.host\.invalid:80'"):
        HttpService(HttpOptions("no.such.host.invalid", 80, None))
