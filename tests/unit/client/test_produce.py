"""A producer's connection to one owner, at moments that no test can bring a server to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
import zmq

from headrace.connection.places import Server
from headrace.produce import _Lane, _Queued
from headrace_proto import log_messages as wire
from headrace_proto.messages import ServedShare
from tests.patience import eventually


@pytest.fixture
def lane() -> Iterator[_Lane]:
    """A connection to an owner that breaks each one off, as a proxy does before a dead worker."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def break_off() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=break_off)
    thread.start()
    server = Server(address)
    server.take(ServedShare("feed", 0, 1, 1, "server", {}, (address,)))
    made, context = _Lane(server, wire.Produce(1, "", "log", "name", 1)), zmq.Context()
    made.connect(context, None)
    yield made
    made.close()
    context.term()
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def test_an_owner_that_breaks_off_connections_while_it_restarts_is_waited_for(lane: _Lane):
    def broken_off() -> bool:
        lane.look(1.0)
        return bool(lane.handshakes.broken_off >= 5)

    assert eventually(broken_off)
    lane.look(100.0)


def test_a_place_of_an_earlier_connection_is_not_used(lane: _Lane):
    """The owner gives a new connection places for the openings that its greeting tells."""
    lane.places = 3
    lane.greet()
    assert not lane.places > lane.opening


def test_steps_do_not_join_what_was_sent_by_an_earlier_connection(lane: _Lane):
    """The owner may have stored it, and takes each number once."""
    step = wire.Item(wire.STEPS, 1, 0, 1, 0, 8)
    for number in (1, 2, 3):
        lane.items.append(_Queued(step, [[wire.Packed(1, b"", bytes(4))]], b"a", None, number))
    lane.last, lane.passed = 3, 2  # two were sent …
    lane.greet()
    lane.sent = 0  # … and nothing is, by the new connection
    assert [lane.joins(one, step) for one in lane.items] == [False, False, True]
    assert not lane.joins(lane.items[2], step._replace(version=1))
