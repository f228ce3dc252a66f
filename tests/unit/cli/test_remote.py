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

TOKEN = "0123456789abcdef"


def asker(address: str | None = None, token_file: Path | None = None) -> HttpClient:
    (one,) = askers(Namespace(http=address, http_token_file=token_file))
    return one


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
