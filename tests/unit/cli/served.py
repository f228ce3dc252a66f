"""An address that answers as a server would, for tests of the commands that ask one."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from headrace_proto.errors import HeadraceError, code_of
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Answered, Command
from headrace_server.server.commands import Commands
from headrace_server.watch.watch import Watch

from ..watch.watched import Watched

__all__ = ["Served", "answering", "served", "serving"]


class Served(Watched):
    """A watched server, and its address."""

    address = ""


@contextlib.contextmanager
def answering(answer: Callable[[bytes], list[bytes]]) -> Iterator[str]:
    """Yield an address at which each message gets the frames of an answer."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                if socket.poll(20):
                    connection, message = socket.recv_multipart()
                    socket.send_multipart([connection, *answer(message)])

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{port}"
        finally:
            ended.set()
            thread.join()


@contextlib.contextmanager
def serving() -> Iterator[Served]:
    server, watch = Served(), Watch()
    watch.begin(server)
    commands = Commands(server, watch)

    def answer(message: bytes) -> list[bytes]:
        command: Command = FROM_TRAINER.decode(message)
        names = ("what", "feed", "name", "whole", "cancel", "force")
        given: dict[str, Any] = {name: getattr(command, name) for name in names}
        try:
            content = json.dumps(commands.carry_out(key=command.key.hex(), **given))
        except HeadraceError as error:
            answered = Answered(0, command.request, code=code_of(error), text=str(error))
            return [FROM_SERVER.encode(answered), b""]
        return [FROM_SERVER.encode(Answered(0, command.request)), content.encode()]

    with answering(answer) as server.address:
        yield server
    watch.end()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server
