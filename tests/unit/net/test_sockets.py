"""Each option of the sockets has its effect."""

from __future__ import annotations

import socket as unix
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from headrace_server.net.sockets import CanNotBind, bind_all, public_router
from tests.nursery import warm_run
from tests.patience import PATIENCE_S


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
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_message_for_a_trainer_that_is_gone_is_an_error_and_not_silence(at):
    router = at.keep(public_router(at.context))
    router.bind("tcp://127.0.0.1:*")
    with pytest.raises(zmq.ZMQError) as caught:
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
    assert caught.value.errno == zmq.EHOSTUNREACH


def test_a_socket_takes_the_place_of_no_file_and_of_no_other_server(at, tmp_path):
    """ZeroMQ would remove either.  The socket of a server that has ended may be removed."""
    file, left, place = tmp_path / "feeds.py", tmp_path / "left", f"ipc://{tmp_path}/socket"
    file.write_text("mine")
    first, second = (at.keep(public_router(at.context)) for _ in range(2))
    with pytest.raises(
        CanNotBind, match=r"feeds\.py': there is a file of this name, which is no s"
    ):
        bind_all(first, [f"ipc://{file}"])
    assert file.read_text() == "mine"
    assert bind_all(first, [place]) == [place]
    with pytest.raises(CanNotBind, match="socket': Address already in use: another server"):
        bind_all(second, [place])
    with unix.socket(unix.AF_UNIX) as ended:
        ended.bind(str(left))
    assert left.is_socket() and bind_all(second, [f"ipc://{left}"]) == [f"ipc://{left}"]


def silent_trainer(at: Sockets, router: Any) -> bytes:
    """Connect a trainer that reads nothing; return its identity."""
    port = router.bind_to_random_port("tcp://127.0.0.1")
    dealer = at.keep(at.context.socket(zmq.DEALER))
    dealer.rcvhwm = 1
    dealer.rcvbuf = 4096
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"hello")
    assert router.poll(1000 * int(PATIENCE_S))
    identity, _ = router.recv_multipart()
    return bytes(identity)


def test_a_trainer_that_does_not_read_makes_an_error_and_not_a_wait(at):
    router = at.keep(public_router(at.context))
    identity = silent_trainer(at, router)
    sent = 0
    while sent < 100_000:
        try:
            router.send_multipart([identity, bytes(64 * 1024)], zmq.NOBLOCK)
        except zmq.Again:
            break
        sent += 1
    assert 0 < sent < 100_000


GOES = """
import socket, struct, time
import zmq
from headrace_server.net.sockets import public_router
context = zmq.Context()
router = public_router(context)
port = router.bind_to_random_port("tcp://127.0.0.1")
heard = b""
while b"ROUTER" not in heard:  # a machine that stands still takes longer than a handshake may
    raw = socket.create_connection(("127.0.0.1", port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00NULL" + bytes(48))
    raw.sendall(b"\\x04\\x1c\\x05READY\\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")
    while b"ROUTER" not in heard and (more := raw.recv(4096)):
        heard += more
raw.sendall(b"\\x00\\x05hello" * 20_000)
assert router.poll(60_000)
raw.close()
time.sleep(2.5)  # the router is busy with something else, for longer than a heartbeat took
taken = 0
while router.poll(300):
    router.recv_multipart()
    taken += 1
assert 64 <= taken, taken
router.close()
context.term()
print("alive")
"""


def test_a_peer_that_goes_while_its_messages_wait_does_not_end_the_process():
    done = warm_run("-c", GOES)
    assert done.stdout == "alive\n", done.stderr
