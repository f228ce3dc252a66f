"""Where HTTP is to be served is checked before anything is begun."""

import pytest

from headrace_proto.errors import ServerError
from headrace_server.watch.http import HttpService, http_place
from headrace_server.watch.watch import Watch


@pytest.mark.parametrize(
    ("http", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("[::1]:0", "::1", 0), ("0.0.0.0:1", "0.0.0.0", 1)],
)
def test_an_address_is_host_and_port(http, host, port):
    found = http_place(http)
    assert found == (host, port)


def test_an_address_that_is_taken_is_told_by_its_name():
    one = HttpService(("127.0.0.1", 0), Watch())
    try:
        port = int(one.address.rpartition(":")[2])
        with pytest.raises(ServerError, match=rf"http='127\.0\.0\.1:{port}': [\w ]*in use$"):
            HttpService(("127.0.0.1", port), Watch())
    finally:
        one.close()
    with pytest.raises(ServerError, match=r"http='no\.such\.host\.invalid:80'"):
        HttpService(("no.such.host.invalid", 80), Watch())
