"""Workers have addresses of their own, beside that of their server, which trainers learn there."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_proto.address import host_and_port
from tests.located import workers_at
from tests.patience import PATIENCE_S
from tests.ports import free_port

from .processes import Process

ROWS = 40


def numbers(rows: int = ROWS) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(rows)]).batch(2)


def started(**options: Any) -> hs.Server:
    return hs.run(numbers(), partitions=4, **{"workers": 2, **options})


def trained(address: str) -> None:
    """Train to the end of the feed from there."""
    with headrace.connect(address, timeout=PATIENCE_S) as feed:
        assert sorted(i for batch in feed for i in batch["i"].tolist()) == [*range(ROWS)]
        assert not feed.local


def ports(address: str) -> list[int]:
    places = [host_and_port(worker) for worker in workers_at(address)]
    return [int(place[1]) for place in places if place is not None]


@pytest.mark.parametrize("given", [False, True], ids=["after bind", "worker_ports"])
def test_workers_have_consecutive_ports(given, over_tcp):
    port, first = free_port(), free_port()
    options = {"worker_ports": f"{first}-{first + 3}"} if given else {}
    with started(bind=f"tcp://127.0.0.1:{port}", **options) as server:
        first = first if given else port + 1
        assert ports(server.address) == [first, first + 1]
        trained(server.address)


def test_each_address_of_a_server_has_its_workers_beside_it(tmp_path, over_tcp):
    path = f"ipc://{tmp_path}/socket"
    with started(bind=["tcp://127.0.0.1:0", path]) as server:
        assert server.addresses[1] == path
        assert workers_at(path) == (f"{path}-0", f"{path}-1")
        assert all(worker.startswith("tcp://") for worker in workers_at(server.address))
        trained(path)


@pytest.mark.parametrize("given", [False, True], ids=["after bind", "worker_ports"])
def test_no_worker_gets_a_port_that_its_server_has(given, over_tcp):
    """1. HTTP and another address of the server have the ports that its workers would get.
    2. Two addresses with one port are refused by name.
    """
    port = free_port()
    options = {"worker_ports": f"{port}-{port + 9}"} if given else {}
    binds = [f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 2}"]
    with started(bind=binds, http=f"127.0.0.1:{port + 1}", **options) as server:
        assert ports(binds[0]) == [port + 3, port + 4]
        assert ports(binds[1]) == [port + 5, port + 6]
        trained(server.address)
    with pytest.raises(ValueError, match=rf"bind='{binds[0]}' and http='0.0.0.0:{port}' are the"):
        started(bind=binds[0], http=f"0.0.0.0:{port}")


def test_a_port_that_another_has_is_named_and_no_server_is_left():
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 2))
        taken.listen()
        with pytest.raises(
            headrace.ServerError, match=f"worker 1: bind='tcp://.*:{port + 2}'.*use"
        ):
            started(bind=f"tcp://127.0.0.1:{port}")
    with started(bind=f"tcp://127.0.0.1:{port}") as server:
        assert ports(server.address) == [port + 1, port + 2]


FEEDS = f"""
import headrace_server as hs


def feed():
    return hs.from_examples([{{"i": k}} for k in range({ROWS})]).batch(2)
"""


def test_a_trainer_finds_the_workers_of_a_server_that_starts_again_with_other_addresses(
    tmp_path, over_tcp
):
    """1. It has half of the rows. 2. The server ends, and starts with other ports of workers."""
    (tmp_path / "feeds.py").write_text(FEEDS)
    bind = f"tcp://127.0.0.1:{free_port()}"

    def begun(number: int, first: int) -> Process:
        options = "--state-dir", "state", "--partitions", "4", "--workers", str(number)
        own = "--bind", bind, "--worker-ports", f"{first}-{first + 3}"
        command = "-m", "headrace_server.cli", "serve", "feeds.py:feed", *options, *own
        server = Process(*command, cwd=tmp_path)
        while "headrace serves at" not in (server.next_line() or "headrace serves at"):
            pass
        return server

    first = free_port()
    with begun(2, first) as server, headrace.connect(bind, timeout=PATIENCE_S) as feed:
        rows = [i for _ in range(ROWS // 4) for i in next(feed)["i"].tolist()]
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGINT)  # not SIGTERM again: two of one kind may become one
        assert server.finish() == 0
        first = free_port()
        with begun(3, first):
            assert ports(bind) == [*range(first, first + 3)]
            rows += [i for batch in feed for i in batch["i"].tolist()]
    assert sorted(rows) == [*range(ROWS)]
