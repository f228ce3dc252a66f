"""The options of the sockets do what they are there for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from headrace_proto import limits
from headrace_server.shell.sockets import public_router


class Sockets:
    """A context whose sockets are closed, as they are set, when the test ends."""

    def __init__(self) -> None:
        self.context: Any = zmq.Context()
        self._open: list[Any] = []

    def keep(self, socket: Any) -> Any:
        self._open.append(socket)
        return socket

    def close(self) -> None:
        for socket in self._open:
            socket.close()
        self.context.term()


@pytest.fixture
def at() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    started = time.monotonic()
    sockets.close()
    assert time.monotonic() - started < 5


def test_a_message_for_a_trainer_that_is_gone_is_an_error_and_not_silence(at: Sockets):
    router = at.keep(public_router(at.context))
    router.bind("tcp://127.0.0.1:*")
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_a_trainer_that_does_not_read_makes_an_error_and_not_a_wait(at: Sockets):
    router = at.keep(public_router(at.context))
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer = at.keep(at.context.socket(zmq.DEALER))
    dealer.rcvhwm = 1
    dealer.rcvbuf = 4096
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"hello")
    assert router.poll(5000)
    identity, _ = router.recv_multipart()
    sent = 0
    while sent < 100_000:
        try:
            router.send_multipart([identity, bytes(64 * 1024)], zmq.NOBLOCK)
        except zmq.Again:
            break
        sent += 1
    assert 0 < sent < 100_000


def test_a_frame_beyond_the_limit_ends_the_connection_and_is_not_taken(at: Sockets):
    router = at.keep(public_router(at.context))
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer = at.keep(at.context.socket(zmq.DEALER))
    dealer.linger = 0
    watch = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(bytes(limits.MAX_UPLOAD_BYTES + 1))
    assert watch.poll(10_000)
    assert not router.poll(0)
    dealer.disable_monitor()
    watch.close()


def test_unsent_messages_hold_up_no_exit(at: Sockets):
    context: Any = zmq.Context()
    router = public_router(context)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer = at.keep(at.context.socket(zmq.DEALER))
    dealer.rcvhwm = 1
    dealer.rcvbuf = 4096
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"hello")
    assert router.poll(5000)
    identity, _ = router.recv_multipart()
    for _ in range(8):  # more than can be on its way
        router.send_multipart([identity, bytes(8 << 20)], zmq.NOBLOCK)
    router.close()
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(5)
    assert not ending.is_alive()
