"""Where the workers of a server are, and a trainer that does not find their memory."""

from __future__ import annotations

import zmq

from headrace.connection.finding import Lookup
from headrace.connection.places import Server
from headrace_proto import limits
from headrace_proto.credentials import Keys
from headrace_proto.messages import Hello
from tests.patience import eventually


def unseen(directory: str, session_file: str) -> None:
    """Stand for ``Attachment`` where a trainer finds no memory of servers, as on another host."""
    raise FileNotFoundError(session_file)


def workers_at(address: str, keys: Keys | None = None, feed: str = "") -> tuple[str, ...]:
    """Return the addresses of the workers of the server at an address."""
    server = Server(address)
    with zmq.Context() as context:
        lookup = Lookup(context, keys, server)

        def found() -> tuple[str, ...]:
            lookup.ask(Hello(limits.PROTOCOL, "t", feed, b"nonce"))
            if lookup.socket.poll(1000) and (answer := lookup.answer(0.0)) is not None:
                server.take(answer)
            return server.owners

        try:
            return eventually(found)
        finally:
            lookup.handshakes.close()
