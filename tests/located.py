"""Where the workers of a server are, as its locator tells a trainer."""

from __future__ import annotations

import zmq

from headrace.credentials import Keys
from headrace.places import ask, places_of
from headrace_proto import limits
from headrace_proto.messages import Hello, ServedShare
from tests.patience import eventually


def workers_at(address: str, keys: Keys | None = None, feed: str = "") -> tuple[str, ...]:
    """Return the addresses of the workers of the server at an address."""
    with zmq.Context() as context:

        def answer() -> ServedShare | None:
            hello = Hello(limits.PROTOCOL, "t", feed, b"nonce", shares=0)
            answered = ask(context, address, keys, hello)
            return answered if isinstance(answered, ServedShare) else None

        return places_of(eventually(answer), address)
