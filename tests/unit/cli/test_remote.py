"""Commands ask by HTTP, print errors, and escape answers that would move a cursor."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from headrace_proto.errors import ServerError
from headrace_server.cli.remote import askers
from headrace_server.watch.http import HttpOptions, HttpService
from headrace_server.watch.http_client import HttpClient

from ..watch.watched import Watched
from .served import Served, served

__all__ = ["served"]

TOKEN = "0123456789abcdef"


def asker(address: str | None = None, token_file: Path | None = None) -> HttpClient:
    (one,) = askers(Namespace(http=address, http_token_file=token_file))
    return one


def test_an_address_is_a_url_or_host_and_port(served: Served):
    port = served.address.rpartition(":")[2]
    for address in (served.address, f"{served.address}/", f"127.0.0.1:{port}", f"localhost:{port}"):
        assert asker(address).get("/status.json")["state"] == "serving"


def test_where_none_is_given_the_usual_port_of_this_machine_is_asked():
    assert asker().url == "http://127.0.0.1:8080"
    assert asker("h:1").url == "http://h:1"


def test_the_token_comes_from_a_file_and_a_missing_one_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"http_token_file='.*nonesuch' can not be used"):
        asker(token_file=tmp_path / "nonesuch")


def test_what_listens_everywhere_is_asked_here(served: Served):
    port = served.address.rpartition(":")[2]
    assert asker(f"0.0.0.0:{port}").url == served.address
    assert asker(f"http://[::]:{port}").url == f"http://[::1]:{port}"


@pytest.mark.parametrize(
    "address",
    [
        *("ftp://h:1", "file:///etc/passwd", "http://", "tcp://h:5557"),
        *("h:99999", "h:0", "h:x", "http://a b/", ":80", "h\n:80", "", "h:1,", "h:1,,h:2"),
        *("h", "h:", "u:p@h:1", "http://h:1?all=1", "h:1#feed"),
    ],
)
def test_other_addresses_are_refused(address: str):
    with pytest.raises(ValueError, match="neither HOST:PORT nor a URL"):
        asker(address)


def test_posting_needs_the_token_where_there_is_one(tmp_path: Path):
    server = Watched()
    service = HttpService(HttpOptions("127.0.0.1", 0, TOKEN))
    service.watch.begin(server)
    try:
        with pytest.raises(ServerError, match=r"token is needed: give .* --http-token-file"):
            asker(service.address).post("/drain")
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        (tmp_path / "token").chmod(0o644)
        with pytest.raises(ValueError, match=r"can be read by everybody \(mode 0644\): chmod 600"):
            asker(service.address, tmp_path / "token")
        (tmp_path / "token").chmod(0o640)
        assert asker(service.address, tmp_path / "token").post("/drain") == {"done": "/drain"}
        assert server.draining
    finally:
        service.close()
