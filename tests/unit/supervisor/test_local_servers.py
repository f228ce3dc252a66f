"""Servers of this process: the owner of an address, and the end of an unreferenced server."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace_proto.errors import ServerError
from headrace_server.supervisor import local_servers
from headrace_server.supervisor.local_servers import LocalServer, refuse_taken
from tests.patience import PATIENCE_S


class Object:
    """Stands for a server."""


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[Object, LocalServer]]]:
    every = []

    def start(
        *takes: str, end: Callable[[], None] = lambda: None, failed: bool = False
    ) -> tuple[Object, LocalServer]:
        server = Object()
        one = LocalServer(server, takes, end, lambda: failed)
        every.append(one)
        return server, one

    yield start
    for one in every:
        one.left()


TAKEN = (
    "tcp://127.0.0.1:5557",
    "tcp://0.0.0.0:5558",
    "http://127.0.0.1:8080",
    "/state",
    "ipc:///a",
)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("bind", "tcp://127.0.0.1:5557"),
        ("bind", "tcp://*:5557"),
        ("bind", "tcp://127.0.0.7:5558"),
        ("bind", "ipc:///a"),
        ("http", "127.0.0.1:8080"),
        ("state_dir", "/state"),
    ],
)
def test_an_address_or_directory_in_use_is_refused_with_the_place_of_its_server(
    started, argument, value
):
    server, one = started(*TAKEN)
    assert one.where.startswith(f"{__file__}:")
    with pytest.raises(ServerError) as caught:
        refuse_taken([("bind", "tcp://127.0.0.1:1"), (argument, value)])
    for words in (f"{argument}={value!r}", one.where, "tcp://127.0.0.1:5557", "close() that"):
        assert words in str(caught.value)
    one.left()
    refuse_taken([(argument, value)])
    del server


@pytest.mark.parametrize(
    "value",
    ["tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://127.0.0.2:5557", "tcp://127.0.0.1:5559"],
)
def test_another_address_is_free(started, value):
    server, _ = started(*TAKEN, "tcp://127.0.0.1:0")
    refuse_taken([("bind", value), ("state_dir", "/state/else")])
    del server


def test_the_address_of_a_failed_server_may_be_tried_again(started):
    server, _ = started(*TAKEN, failed=True)
    refuse_taken([("bind", TAKEN[0])])
    with pytest.raises(ServerError, match="state_dir='/state' is used"):
        refuse_taken([("state_dir", "/state")])
    del server


def test_a_server_that_is_garbage_is_ended_and_those_who_want_its_address_wait(started, caplog):
    caplog.set_level(logging.WARNING, "headrace.server")
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def end() -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        ended.set()

    server, one = started(*TAKEN, end=end)
    with local_servers._lock:  # garbage can be found amid anything
        del server
        gc.collect()
    assert begun.wait(PATIENCE_S) and not ended.is_set()
    threading.Timer(0.01, may_end.set).start()
    refuse_taken([("bind", TAKEN[0])])
    assert ended.is_set()
    assert TAKEN[0] in caplog.text and one.where in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_in_a_forked_child_nothing_is_ended_and_nothing_is_taken(started):
    ends: list[int] = []
    server, one = started(*TAKEN, end=lambda: ends.append(1))
    pid = os.fork()
    if not pid:
        refuse_taken([("bind", TAKEN[0])])
        del server
        gc.collect()
        os._exit(len(ends) + (one.ending is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del server
